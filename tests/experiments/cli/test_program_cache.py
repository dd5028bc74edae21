"""Compiled programs are kept for the next command, in a folder that is its user's alone; they hold
no rating and no key: other ones need no other program.
"""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from experiments.cli import main as cli
from experiments.cli import program_cache
from tests.cases.compilation import environment
from tests.cases.fit import write_ratings

SETTINGS = [
    "mine.csv",
    "--rating-range",
    "1",
    "5",
    "--devices",
    "1",
    "--json",
]
FIT = ["fit", *SETTINGS, "--controls", "none"]
AUDIT = ["audit", *SETTINGS, "--quick", "--only", "sensitivity"]


def written(folder, values):
    user, item = np.nonzero(np.random.default_rng(0).random((30, 11)) < 0.5)
    rows = zip((f"u{u}" for u in user), item, values[: len(user)], strict=True)
    write_ratings(folder / "mine.csv", rows)


def ran(folder, *words, quick=True, **variables):
    """What a command said, in a process of its own that knows no folder but these variables'."""
    known = {
        name: value
        for name, value in environment(quick=quick).items()
        if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", *words],
        cwd=folder,
        env=known | {"PYTHONPATH": os.getcwd(), "DPMF_LEDGER": str(folder / "ledger"), **variables},
        capture_output=True,
        text=True,
        check=False,
        umask=0,
    )
    assert done.returncode == 0, done.stderr
    return done


def entries(folder):
    """Names of the programs that are kept anywhere below it."""
    return {entry.name for entry in folder.rglob("*-cache")}


def kept_after(folder, values, seed, *words):
    written(folder, values)
    ran(folder, *words, "--seed", str(seed), XDG_CACHE_HOME=str(folder / "cache"))
    return entries(folder / "cache")


@pytest.mark.seconds
@pytest.mark.parametrize(
    "words",
    [
        (*FIT, "--steps", "4"),
        pytest.param(
            (*FIT, "--mechanism", "local", "--rounds", "3", "--learning-rate", "0.01"),
            marks=pytest.mark.slow,
        ),
        pytest.param((*FIT, "--mechanism", "dpsgd", "--steps", "4"), marks=pytest.mark.slow),
        pytest.param((*FIT, "--mechanism", "objective-public-users"), marks=pytest.mark.slow),
        pytest.param(
            (*FIT, "--mechanism", "federated-user", "--steps", "4"), marks=pytest.mark.slow
        ),
        pytest.param((*AUDIT, "--mechanism", "dpsgd"), marks=pytest.mark.slow),
    ],
)
def test_other_ratings_and_another_key_take_the_programs_that_are_there(tmp_path, words):
    values = np.random.default_rng(1).integers(1, 6, 330)
    first = kept_after(tmp_path, values, 0, *words)
    assert any(name.startswith("jit_") for name in first)
    assert kept_after(tmp_path, 6 - values, 1, *words) == first


SCRIPT = """
from experiments.cli import main as cli
from experiments.cli import program_cache
program_cache.keep()
import jax
print(jax.jit(lambda x: (x * x).sum())(jax.numpy.arange(100.0)))
"""


def computed(folder):
    """What a small computation says, on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": os.getcwd(), "XDG_CACHE_HOME": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        umask=0,
    )
    return done.stdout, done.stderr


def test_the_next_process_takes_what_is_there_and_mends_nothing(tmp_path):
    told = computed(tmp_path)
    assert told[0] == "328350.0\n"
    assert told[1] == ""
    first = entries(tmp_path)
    assert first
    for path in tmp_path.rglob("*-cache"):  # as a command leaves it that is killed while it writes
        path.write_bytes(path.read_bytes()[:40])
    assert computed(tmp_path) == told
    assert entries(tmp_path) == first


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where programs would be kept, in a cache that is still empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    yield program_cache.default_folder()
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # monkeypatch puts back what was there


def test_a_new_folder_is_for_its_user_alone(folder):
    before = os.umask(0)
    try:
        program_cache.keep()
    finally:
        os.umask(before)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    for part in (folder, folder.parent, folder.parents[1]):
        assert stat.S_IMODE(part.stat().st_mode) == 0o700


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_used(folder, up, mode):
    folder.mkdir(parents=True, mode=0o700)
    for part in (folder, folder.parent, folder.parents[1]):
        part.chmod(0o700)
    [folder, *folder.parents][up].chmod(mode)
    program_cache.keep()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_without_a_home_nothing_is_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")  # which the standard says to ignore
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.chdir(tmp_path)
    program_cache.keep()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert not list(tmp_path.iterdir())


def test_a_file_in_its_place_is_left_alone(folder):
    folder.parents[1].mkdir(parents=True)
    folder.parent.write_text("mine")
    program_cache.keep()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    assert folder.parent.read_text() == "mine"


def test_what_was_compiled_first_goes_first(folder, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)
    folder.parents[1].chmod(0o700)
    folder.parent.chmod(0o700)
    for age in range(10):
        path = folder / f"{age}-cache"
        path.write_bytes(bytes(100))
        os.utime(path, (age, age))
    monkeypatch.setattr(program_cache, "ROOM", 1000)
    program_cache.keep()
    assert len(entries(folder)) == 10
    monkeypatch.setattr(program_cache, "ROOM", 999)
    del os.environ["JAX_COMPILATION_CACHE_DIR"]
    program_cache.keep()
    assert entries(folder) == {f"{age}-cache" for age in range(6, 10)}
    assert program_cache.size(folder) == 400


def test_a_folder_of_ones_own_is_honoured(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    program_cache.keep()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mine")
    assert not folder.exists()


def test_the_benchmark_of_the_compiler_compiles(folder):
    assert cli.main(["bench"]) == 2
    assert not folder.exists()
    assert cli.main(["data", "list"]) == 0
    assert folder.exists()
