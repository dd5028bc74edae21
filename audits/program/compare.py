"""What sets two runs on neighbouring data sets apart, outside the noise.

Outside `private/` a run may show noisy numbers, and nothing else that differs. Noisy is what
another key changes on the same ratings. Released numbers may be few, such as steps of a grid or the
ends of a range, so one other key can leave a noisy one as it is: what moves with the ratings is
asked of other keys until one of them moves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from audits.program.runs import Run
from dpmf_jax.models import storage

OTHERS = 32  # keys that may move a number before it counts as free of noise
Others = Callable[[int], Run | Exception]


def compare(own: Run, others: Others, there: Run) -> dict[str, list[str]]:
    """What is wrong, by finding; each an empty list where nothing is.

    Args:
      own: a run on the first data set.
      others: place -> how a run on the same data set ends with the other key of that place.
      there: on its neighbour, with the key of `own`.
    """
    return {
        "fit: steps": _steps(own, there),
        "fit: files": [*_files(own), *_shapes(own, there)],
        "fit: public words": _public_words(own, there),
        "fit: released numbers": _numbers(own, others, there),
        "fit: logs": [] if own.log == there.log else [f"printed {_first_line(own.log, there.log)}"],
    }


def _steps(own: Run, there: Run) -> list[str]:
    """More steps than are priced, and another number of them on the other data set."""
    differences = []
    for world in (own, there):
        if world.taken is not None and world.taken > world.priced:
            differences.append(f"{world.taken} steps were done, {world.priced} are priced")
    if own.taken != there.taken or own.priced != there.priced:
        differences.append(f"{own.taken} steps on one data set, {there.taken} on the other")
    return differences


def _files(own: Run) -> list[str]:
    """Arrays outside private/ that the release does not have, and private files others can read."""
    wrong = []
    released = {part.tobytes() for part in map(np.asarray, jax.tree.leaves(own.model.release))}
    for name, content in own.public.items():
        wrong += [
            f"{name} has {part}, which is not in the release"
            for part, array in _arrays(name, content).items()
            if array.tobytes() not in released
        ]
    for name, (_, mode) in own.files.items():
        if name.startswith("private/") and mode & 0o077:
            wrong.append(f"{name} can be read by others (mode {mode:o})")
    return wrong


def _shapes(own: Run, there: Run) -> list[str]:
    """Files, and arrays in them or in the release, that one run has and the other has not."""
    differences = [
        f"{name} is in one folder only" for name in sorted(set(own.public) ^ set(there.public))
    ]
    for name in sorted(set(own.public) & set(there.public)):
        shapes = [
            {
                part: (array.shape, str(array.dtype))
                for part, array in _arrays(name, world.public[name]).items()
            }
            for world in (own, there)
        ]
        if shapes[0] != shapes[1]:
            differences.append(f"arrays of {name}: {shapes[0]} and {shapes[1]}")
    parts = [
        {
            jax.tree_util.keystr(path): leaf.shape
            for path, leaf in jax.tree.flatten_with_path(world.model.release)[0]
        }
        for world in (own, there)
    ]
    if parts[0] != parts[1]:
        differences.append(f"the release: {parts[0]} and {parts[1]}")
    return differences


def _public_words(own: Run, there: Run) -> list[str]:
    """Public text and JSON, and public fields of the model, that differ; hashes are left out."""
    differences = [
        f"{name}: {_first_line(*texts)}"
        for name in sorted(set(own.public) & set(there.public))
        if not _arrays(name, own.public[name])
        and len(set(texts := [_text(name, world) for world in (own, there)])) > 1
    ]
    for name in ("guarantee", "settings", "rating_range"):
        if getattr(own.model, name) != getattr(there.model, name):
            differences.append(f"the model's {name} differ")
    for name in ("users", "items"):
        if not np.array_equal(getattr(own.model, name), getattr(there.model, name)):
            differences.append(f"the model's {name} differ")
    return differences


def _text(name: str, world: Run) -> str:
    """A public file as text, with hashes of public files masked.

    Hashes of other public files, and of the file itself, follow from what they hash.
    """
    text = world.public[name].decode(errors="replace")
    for other, content in world.public.items():
        text = text.replace(hashlib.sha256(content).hexdigest(), f"hash of {other}")
    if name.endswith(".json"):
        with contextlib.suppress(ValueError):
            content = json.loads(text)
            if isinstance(content, dict) and re.fullmatch(
                r"[0-9a-f]{64}", str(content.get("sha256"))
            ):
                content["sha256"] = "hash of the rest"
            return json.dumps(content, indent=1, sort_keys=True)
    return text


def _numbers(own: Run, others: Others, there: Run) -> list[str]:
    """Entries of the release that move with the ratings, and with none of `OTHERS` other keys.

    A noisy entry that each of them moves with probability a third or more is named once in 400,000.
    """
    first, second = (_leaves(world) for world in (own, there))
    if list(first) != list(second):
        return []  # a matter of files and shapes
    moved = {
        name: leaf != second[name]
        for name, leaf in first.items()
        if leaf.shape == second[name].shape
    }
    for place in range(OTHERS):
        moved = {name: entries for name, entries in moved.items() if entries.any()}
        if not moved:
            break
        if isinstance(other := others(place), Run):
            leaves = _leaves(other)
            moved = {
                name: entries & (leaves[name] == first[name])
                for name, entries in moved.items()
                if name in leaves and leaves[name].shape == entries.shape
            }
    return [
        f"{int(np.sum(entries))} of {entries.size} entries of {name}"
        for name, entries in moved.items()
        if entries.any()
    ]


def _leaves(world: Run) -> dict[str, np.ndarray]:
    """What is released, by name."""
    leaves = jax.tree.leaves_with_path(world.model.release)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _arrays(name: str, content: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file, by name; none where it is no file of arrays."""
    if name.endswith(".safetensors"):
        with tempfile.TemporaryDirectory() as base:
            path = Path(base) / "arrays"
            path.write_bytes(content)
            return storage.read_arrays(path)
    if name.endswith((".npy", ".npz")):
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        return dict(loaded) if name.endswith(".npz") else {"array": loaded}
    return {}


def _first_line(text: str, other: str) -> str:
    """Both versions of the first line that differs."""
    lines, others = text.splitlines(), other.splitlines()
    for a, b in zip(lines, others, strict=False):
        if a != b:
            return f"{a.strip()[:80]!r} and {b.strip()[:80]!r}"
    return f"{len(lines)} and {len(others)} lines"
