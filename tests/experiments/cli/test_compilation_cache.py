"""jax's cache of compiled programs is honoured, and holds no rating and no key: other ones need no
other program.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.cases.compilation import environment
from tests.cases.fit import write_ratings

FIT = [
    "fit",
    "mine.csv",
    "--rating-range",
    "1",
    "5",
    "--controls",
    "none",
    "--devices",
    "1",
    "--json",
]


def fitted(folder, cache, values, seed, *words):
    """Names of the cache's entries after a fit of its own process."""
    user, item = np.nonzero(np.random.default_rng(0).random((30, 11)) < 0.5)
    rows = zip((f"u{u}" for u in user), item, values[: len(user)], strict=True)
    write_ratings(folder / "mine.csv", rows)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", *FIT, "--seed", str(seed), *words],
        cwd=folder,
        env=environment(quick=True)
        | {
            "PYTHONPATH": os.getcwd(),
            "DPMF_LEDGER": str(folder / "ledger"),
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {entry.name for entry in cache.iterdir() if entry.name.endswith("-cache")}


@pytest.mark.seconds
@pytest.mark.parametrize(
    "words",
    [
        ("--steps", "4"),
        pytest.param(
            ("--mechanism", "local", "--rounds", "3", "--learning-rate", "0.01"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("--mechanism", "dpsgd", "--steps", "4"), marks=pytest.mark.slow),
        pytest.param(("--mechanism", "objective-public-users"), marks=pytest.mark.slow),
        pytest.param(("--mechanism", "federated-user", "--steps", "4"), marks=pytest.mark.slow),
    ],
)
def test_other_ratings_and_another_key_take_the_programs_that_are_there(tmp_path, words):
    values = np.random.default_rng(1).integers(1, 6, 330)
    first = fitted(tmp_path, tmp_path / "cache", values, 0, *words)
    assert any(name.startswith("jit_train-") for name in first)
    assert fitted(tmp_path, tmp_path / "cache", 6 - values, 1, *words) == first
