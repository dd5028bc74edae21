"""Whether the packages beside this one are this project's own.

`accounting`, `audits` and `experiments` are plain words, and other projects have packages of these
names. Where Python finds another one first, or another one was installed over ours, nothing of this
project may half work.
"""

import importlib.util
from pathlib import Path

from dpmf_jax.errors import PrivacyError

MARK = b'PROJECT = "dpmf-jax"'  # in the __init__.py of each
HERE = Path(__file__).resolve().parent


class ForeignPackage(PrivacyError, ImportError):
    """Python finds another package in the place of one of this project's."""


def refuse_others(*names: str) -> None:
    """Raises: ForeignPackage for the first of the packages that is not this project's."""
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module that somebody made has no spec
            spec = None
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin != HERE.parent / name / "__init__.py":
            where = "not installed" if origin is None else str(origin)
        elif MARK not in origin.read_bytes():
            where = f"{origin}, which another project installed over it"
        else:
            continue
        raise ForeignPackage(
            f"dpmf-jax needs its own package {name}, and Python finds another one, or none",
            where=where,
            fix="install dpmf-jax in an environment of its own (python -m venv), or rename your"
            f" own {name}",
        )
