"""What a benchmark measures in a process of its own, such as a peak of memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.data.ratings import Ratings

COLUMNS = ("user", "item", "value")


def run(module: str, *words: object) -> Any:
    """What `python -m module words…` prints as its last line, read as JSON."""
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def columns_on_disk(ratings: Ratings) -> Generator[str]:
    """A temporary folder with the ratings as three arrays, for `read_columns`."""
    with tempfile.TemporaryDirectory() as folder:
        for name in COLUMNS:
            np.save(Path(folder) / f"{name}.npy", getattr(ratings, name))
        yield folder


def read_columns(folder: str, num_users: int, num_items: int) -> Ratings:
    """The ratings of `columns_on_disk`, rated from 1 to 5."""
    user, item, value = (np.load(Path(folder) / f"{name}.npy") for name in COLUMNS)
    return Ratings(user, item, value, np.arange(num_users), np.arange(num_items), (1.0, 5.0))
