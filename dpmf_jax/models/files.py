"""model.json and the files it names: written and read without jax, refused where a byte changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accounting.guarantee import Guarantee
from dpmf_jax.errors import DataError
from dpmf_jax.models import storage

FORMAT = 2  # 1 had ρ and z in the guarantee, in place of losses
RELEASE = "release.safetensors"


class Saved(NamedTuple):
    """A model's public part.

    content: of model.json.
    guarantee: of the release.
    arrays: the released ones, by name.
    """

    content: dict[str, Any]
    guarantee: Guarantee
    arrays: dict[str, np.ndarray]


def read(folder: Path) -> Saved:
    """The public part of a model that is as it was saved.

    Raises: DataError where there is no folder, no model in it, an unfinished one, or files that
      were changed, cut short or are another program's; it names the file.
    """
    path = folder / "model.json"
    if not folder.is_dir():
        raise DataError(
            "there is no such model folder",
            where=str(folder),
            fix="give the folder that `dpmf fit` printed",
        )
    refuse_lost(folder)
    if not path.exists() and (folder / "private" / "run.json").exists():
        raise DataError(
            "the fit in this folder is not finished",
            where=str(folder),
            fix=f"dpmf fit --resume {folder}, then again",
        )
    content = read_signed(path)
    if content.get("format") != FORMAT:
        raise DataError(
            f"the model has format {content.get('format')}, this program reads {FORMAT}",
            where=str(path),
            fix=(
                "use the version of dpmf-jax that wrote it (under `versions` in model.json), or fit"
                " again"
            ),
        )
    try:
        files = content["files"]
        arrays = storage.read_arrays(folder / RELEASE, sha256=files[RELEASE]) if files else {}
        return Saved(content, Guarantee.from_dict(content["guarantee"]), arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise not_a_model(path, error) from None


def refuse_lost(folder: Path) -> None:
    """Raises: DataError where a model was finished here and its model.json is gone.

    Nothing is left to resume there.
    """
    path = folder / "model.json"
    if (
        path.exists()
        or not (folder / "PRIVACY.md").exists()
        or (folder / "private" / "checkpoints").exists()
    ):
        return
    raise DataError(
        "model.json is missing: the fit in this folder was finished, and the file is lost",
        where=str(path),
        fix=(
            "restore it from a copy; or fit anew into another folder, and count what PRIVACY.md"
            " here states as spent"
        ),
    )


def not_a_model(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path.name} does not describe a model: {error}",
        where=str(path),
        fix="restore the file from a copy, or fit again",
    )


def write_signed(path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """JSON with a hash of itself in it."""
    storage.write_json(path, {**content, "sha256": _digest(content)}, private=private)


def read_signed(path: Path) -> dict[str, Any]:
    """The content that `write_signed` wrote.

    Raises: DataError where the file is missing, no JSON object, or was changed.
    """
    content = storage.read_json(path)
    expected = content.pop("sha256", None)
    if expected != _digest(content):
        raise DataError(
            f"{path.name} was changed after it was saved",
            where=str(path),
            fix="restore the file, or fit again",
        )
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
