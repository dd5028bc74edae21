"""Checkpoints of a run: the training state after a step, whole or absent, under `private/`.

The newest two are kept.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.errors import DataError
from dpmf_jax.models import storage
from dpmf_jax.protocol import State

KEEP = 2


def _named_leaves(state: State) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}


def _files(private: Path) -> list[Path]:
    return sorted((private / "checkpoints").glob("step-*.safetensors"))


def save(private: Path, state: State) -> Path:
    """Write the state (not the key) atomically with mode 0600, then drop all but the newest two."""
    folder = private / "checkpoints"
    with storage.writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"step-{int(state.step):08d}.safetensors"
    storage.write_arrays(
        path, {name: np.asarray(leaf) for name, leaf in _named_leaves(state).items()}, private=True
    )
    for old in _files(private)[:-KEEP]:
        old.unlink()
    return path


def latest(private: Path, template: State) -> State | None:
    """The newest state that is whole and has the template's names, shapes and types; else None."""
    expected = _named_leaves(template)
    structure = jax.tree.structure(template)
    for path in reversed(_files(private)):
        try:
            arrays = storage.read_arrays(path)
        except DataError:
            continue  # cut short by a power failure: the one before it is whole
        if {name: (leaf.shape, leaf.dtype) for name, leaf in arrays.items()} == {
            name: (leaf.shape, leaf.dtype) for name, leaf in expected.items()
        }:
            return jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in expected])
    return None


def clear(private: Path) -> None:
    """Remove all checkpoints: the run is complete."""
    shutil.rmtree(private / "checkpoints", ignore_errors=True)
