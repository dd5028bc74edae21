"""How the pages and tables of a reproduction get into a folder."""

from collections.abc import Mapping
from pathlib import Path

from dpmf_jax.models import storage


def written(folder: Path, content: Mapping[str, str]) -> list[Path]:
    """Writes each text under its name; returns the paths."""
    paths = []
    for name, text in content.items():
        paths.append(folder / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(paths[-1], text.encode())
    return paths
