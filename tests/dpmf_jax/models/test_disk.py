"""A full disk, a file where a folder goes, a lost model.json: what, where, fix, and nothing
half-written.
"""

import errno
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

import dpmf_jax
from dpmf_jax.errors import CannotWrite, DataError, UsageError
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.models import storage
from dpmf_jax.training import journal
from experiments.cli import console
from tests.cases import fit as fit_cases
from tests.cases.fit import CATALOGUE, FIT, run
from tests.cases.training import CONFIG, RATINGS, contents

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

SMALL = ["--steps", "4", "--rank", "3", "--learning-rate", "0.01"]
READERS = (
    ("recommend", "model", "--user", "u1"),
    ("predict", "model", "--user", "u1", "--item", "2"),
    ("evaluate", "model", "--data", "mine.csv"),
    ("epsilon", "model", "model"),
    ("budget", "add", "model"),
    ("fit", "--resume", "model"),
)


@contextmanager
def no_file_above(size: int):
    """The operating system lets no file grow beyond so many bytes, as a full disk would not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_an_error(err: str, code: int, *told: str):
    lines = err.splitlines()[-3:]
    assert [line.partition(":")[0] for line in lines] == ["error", "where", "fix"]
    assert "Traceback" not in err
    assert "--debug" not in err
    assert code in (2, 3, 4)
    for part in told:
        assert part in err


def is_whole(folder: str):
    """Nothing half-written: no partial file, and a model or none."""
    assert not list(Path(folder).rglob("*.partial"))
    if (Path(folder) / "model.json").exists():
        dpmf_jax.load_model(folder)


@pytest.mark.seconds
@pytest.mark.parametrize("size", [0, 100, 500, 1200, 2000])
def test_a_disk_that_fills_up_loses_no_run(capsys, size):
    """From the first file of a run to the last one, the model's."""
    with no_file_above(size):
        code, out, err = run(capsys, *FIT, *SMALL, *CATALOGUE, "--seed", "0", "--out", "model")
    assert code == 4, err
    assert out == ""
    is_an_error(err, code)
    is_whole("model")
    again = "dpmf fit --resume model" if Path("model/private/run.json").exists() else "--out"
    assert again in err
    anew = [*FIT, *SMALL, *CATALOGUE, "--seed", "0", "--out", "model"]
    words = ["fit", "--resume", "model"] if "--resume" in err else anew
    code, _, err = run(capsys, *words)
    assert code == 0, err
    if "--resume" in words:
        whole = run(capsys, *FIT, *SMALL, *CATALOGUE, "--seed", "0", "--out", "whole")
        assert whole[0] == 0
        assert (
            Path("model/release.safetensors").read_bytes()
            == Path("whole/release.safetensors").read_bytes()
        )


def test_a_write_that_fails_is_an_oserror_and_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with no_file_above(10), pytest.raises(CannotWrite) as caught:
        storage.write_bytes(tmp_path / "file", b"n" * 100)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.where == str(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert not list(tmp_path.rglob("*.partial"))


def test_a_full_disk_that_another_library_meets_has_a_remedy_too(capsys):
    code = console.end(OSError(errno.ENOSPC, "No space left on device", "picture.png"), debug=False)
    is_an_error(capsys.readouterr().err, code, "picture.png", "free some space")
    assert code == 4


@pytest.mark.parametrize(
    "words",
    [
        (*FIT, *SMALL, "--seed", "0", "--out", "afile"),
        (*FIT, *SMALL, "--seed", "0", "--out", "afile/below"),
        ("fit", "--resume", "afile"),
        ("recommend", "afile", "--user", "u1"),
    ],
)
def test_a_file_where_a_folder_goes(capsys, words):
    Path("afile").write_text("precious")
    before = contents(Path())
    code, out, err = run(capsys, *words)
    is_an_error(err, code, "afile")
    assert out == ""
    assert contents(Path()) == before
    with pytest.raises(
        UsageError, match="a file, not a folder"
    ):  # where reproductions and audits keep things
        storage.private_folder(Path("afile") / "below")


@pytest.mark.seconds
@pytest.mark.parametrize("seed", [("--seed", "0"), CATALOGUE])
def test_a_finished_model_without_model_json_is_no_unfinished_run(capsys, seed):
    """To go on with it would release a second time, or say so after reading all ratings."""
    code, _, err = run(capsys, *FIT, *SMALL, *seed, "--out", "model")
    assert code == 0, err
    Path("model/model.json").unlink()
    Path("mine.csv").unlink()  # nothing is read before it is said
    before = contents(Path("model"))
    for words in READERS:
        code, out, err = run(capsys, *words)
        is_an_error(err, code, "model.json", "was finished", "restore")
        assert (code, out) == (DataError.exit_code, ""), words
        assert "--resume" not in err
        assert contents(Path("model")) == before


def test_a_run_that_is_not_finished_is_still_resumed(capsys, monkeypatch):
    fit_cases.interrupted(capsys, monkeypatch, *SMALL, "--seed", "0", "--out", "model")
    for words in READERS[:-1]:
        code, _, err = run(capsys, *words)
        is_an_error(err, code, "not finished", "dpmf fit --resume model")
    fit_cases.resumed(capsys, "model")


def test_python_is_refused_to_go_on_with_a_finished_model_as_well(tmp_path):
    options = {"num_steps": 2, "seed": 0, "out": tmp_path / "model"}
    dpmf_jax.fit(RATINGS, gaussian.mechanism(CONFIG), **options)
    (tmp_path / "model" / "model.json").unlink()
    with pytest.raises(DataError, match="was finished"):
        dpmf_jax.fit(RATINGS, gaussian.mechanism(CONFIG), resume=True, **options)


def test_power_that_fails_between_statement_and_model_json_is_made_good_by_a_resume(
    capsys, monkeypatch
):
    """The checkpoint is still there: it goes only after model.json is written."""
    with monkeypatch.context() as patched:
        patched.setattr(journal.Journal, "close", lambda self: None)
        run(capsys, *FIT, *SMALL, *CATALOGUE, "--out", "model")
    release = Path("model/release.safetensors").read_bytes()
    Path("model/model.json").unlink()
    fit_cases.resumed(capsys, "model")
    assert Path("model/release.safetensors").read_bytes() == release
