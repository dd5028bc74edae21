"""What computed a number: the commit and the device."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

UNKNOWN = "unknown: not run from a git checkout"


@functools.cache
def commit() -> str:
    """The checkout's commit, with "-dirty" where files differ; `UNKNOWN` without a checkout."""
    checkout = Path(__file__).resolve().parents[2]
    top = _git(checkout, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != checkout:
        return UNKNOWN
    return (
        _git(checkout, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or UNKNOWN
    )


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def device() -> str:
    """Such as "2 x cpu"."""
    import jax

    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"
