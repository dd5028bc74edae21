"""The command as a stranger meets it: three-line errors, exit codes, JSON, settings files, Ctrl-C,
a closed pipe.

The tests bring a program of their own, `PROGRAM`, and enter it in the table of commands.
"""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from experiments.cli import console, settings
from experiments.cli import main as cli

PROGRAM = '''
"""A program of the tests."""

import time
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from dpmf_jax import errors
from experiments.cli import console


@dataclass(frozen=True, kw_only=True)
class Command:
    """Print what was asked for, or end as told."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A data set."""
    center: float | Literal["item", "global"] = "item"
    """What is subtracted."""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest rating."""
    steps: int = 10
    """How many."""
    end: str = ""
    """How to end."""
    json: bool = False
    """One JSON object on stdout."""


def run(command):
    match command.end:
        case "":
            result = {**vars(command), "epsilon": float("inf")}
            console.emit(result, json=command.json, render=lambda result: "plain text")
        case "FloatingPointError":
            raise FloatingPointError("diverged at step 130; lower learning_rate")
        case "OSError":
            open("/nowhere/at/all")
        case "interrupt":
            raise console.Interrupted("dpmf fit --resume runs/a")
        case "sleep":
            console.say("ready")
            time.sleep(30)
        case "chatter":
            for line in range(100_000):
                print(line)
        case "progress":
            with console.progress("fit", 3, every=float(command.data)) as report:
                for done in range(1, 4):
                    report(done, rmse=0.9, steps=done)
        case "code":
            return 5
        case "import":
            import tests.nowhere
        case "extra":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        case name if hasattr(errors, name):
            raise getattr(errors, name)("what happened", where="ratings.csv, row 3",
                fix="mend row 3")
        case name:
            raise RuntimeError(f"two lines\\nof {name}")
'''

START = (
    "import sys; from experiments.cli import main as cli; cli.COMMANDS['try'] = ('a test',"
    " 'a_test_program:Command'); "
)
START += "sys.exit(cli.main())"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the tests' program in it, on the import path."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "a_test_program.py").write_text(PROGRAM)
    return folder


@pytest.fixture
def dpmf(folder, monkeypatch, capsys):
    """Runs a command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(cli.COMMANDS, "try", ("a test", "a_test_program:Command"))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = ended.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


def start(
    folder: Path, *words: str, encoding: str = "utf-8", stdout: int = subprocess.PIPE
) -> subprocess.Popen:
    """The same in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONIOENCODING": encoding,
        "PYTHONUNBUFFERED": "",
    }
    line = [sys.executable, "-c", START, *words]
    return subprocess.Popen(line, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


# ---- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("DpmfError", 2),
        ("UsageError", 2),
        ("DataError", 3),
        ("PrivacyError", 4),
        ("AuditViolated", 5),
        ("OutsideTolerance", 6),
    ],
)
def test_an_error_is_three_lines_and_its_own_exit_code(dpmf, end, code):
    assert dpmf("try", "a", "--end", end, "--json") == (
        code,
        "",
        "error: what happened\nwhere: ratings.csv, row 3\nfix: mend row 3\n",
    )


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("FloatingPointError", 1, "error: diverged at step 130\nfix: lower learning_rate\n"),
        (
            "OSError",
            1,
            (
                "error: No such file or directory\nwhere: /nowhere/at/all\nfix: run again with"
                " --debug for"
            ),
        ),
        (
            "import",
            1,
            (
                "error: ModuleNotFoundError: No module named 'tests.nowhere'\nfix: run again with"
                " --debug for"
            ),
        ),
        (
            "anything",
            1,
            (
                "error: RuntimeError: two lines of anything\nfix: run again with --debug for the"
                " traceback\n"
            ),
        ),
        ("extra", 4, "error: torch is not installed\nfix: pip install 'dpmf-jax[bench]'\n"),
        ("interrupt", 130, "error: interrupted\nfix: resume with: dpmf fit --resume runs/a\n"),
        ("code", 5, ""),
    ],
)
def test_every_other_end(dpmf, end, code, said):
    ended, out, err = dpmf("try", "a", "--end", end)
    assert (ended, out) == (code, "")
    assert err.startswith(said)
    assert "Traceback" not in err


@pytest.mark.parametrize("place", [0, 1, 4])
def test_debug_shows_the_traceback_wherever_it_stands(dpmf, place):
    words = ["try", "a", "--end", "DataError"]
    words.insert(place, "--debug")
    code, _, err = dpmf(*words)
    assert code == 3
    assert "Traceback" in err
    assert err.endswith("fix: mend row 3\n")


def test_ctrl_c_ends_with_130(folder):
    process = start(folder, "try", "a", "--end", "sleep")
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted\n")


def test_a_pipe_that_was_never_read_is_silent(folder):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(folder, "try", "a", "--json", stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")


def test_a_closed_pipe_is_silent(folder):
    process = start(folder, "try", "a", "--end", "chatter")
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(60), err) == (141, "")


# ---- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error", "fix"),
    [
        (["fitt"], "there is no command `dpmf fitt`", "dpmf fit"),
        (
            ["--frobnicate"],
            "there is no command `dpmf --frobnicate`",
            "dpmf --help lists the commands",
        ),
        (["data", "chek"], "there is no command `dpmf data chek`", "dpmf data check"),
        (
            ["data", "x"],
            "there is no command `dpmf data x`",
            "dpmf data list or dpmf data check or dpmf data convert",
        ),
        (["dta"], "there is no command `dpmf dta`", "dpmf data"),
        (
            ["data", "--json"],
            "flags come after one of them, list, check, convert",
            "dpmf data list --json",
        ),
        (
            ["epsilon", "--steps", "3"],
            "flags come after one of them, gaussian",
            "dpmf epsilon gaussian --steps 3",
        ),
        (
            ["epsilon", "--steps", "3", "--epsilon=2", "--accountant", "exact"],
            "flags come after one of them, gaussian",
            "dpmf epsilon gaussian --steps 3 --epsilon=2 --accountant exact",
        ),
        (["try"], "Missing from dpmf try: DATA", "dpmf try --help"),
        (
            ["try", "a", "--step", "3"],
            "Unrecognized options: --step, 3",
            "Perhaps you meant: --steps INT",
        ),
        (["try", "a", "b"], "Unrecognized options: b", "dpmf try --help"),
        (
            ["try", "a", "--steps", "x"],
            "Error parsing --steps: invalid literal for int()",
            "dpmf try --help",
        ),
        (["try", "a", "--rating-range", "1"], "--rating-range", "dpmf try --help"),
        (["try", "a", "--config"], "--config needs a value", "--config FILE.toml"),
        (
            ["try", "a", "--config", "nowhere.toml"],
            "cannot read the settings file: No such file",
            "give --config",
        ),
    ],
)
def test_a_usage_error_has_the_same_shape(dpmf, words, error, fix):
    code, out, err = dpmf(*words)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert lines[-1].startswith(f"fix: {fix}")
    assert {line.partition(":")[0] for line in lines} <= {"error", "where", "fix"}


@pytest.mark.parametrize(
    "encoding", ["utf-8", "ascii"]
)  # the parser frames its messages in what the terminal can show
def test_a_mistyped_flag_is_three_lines(folder, encoding):
    process = start(folder, "try", "a", "--step", "3", encoding=encoding)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.splitlines() == [
        "error: Unrecognized options: --step, 3",
        "where: dpmf try",
        "fix: Perhaps you meant: --steps INT How many. (default: 10); dpmf try --help",
    ]


def test_help_is_on_stdout_and_no_command_is_a_usage_error(dpmf):
    code, out, err = dpmf("--help")
    assert (code, err) == (0, "")
    assert dpmf() == (2, "", out)
    entries = [
        line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    assert sorted(entries) == sorted({name.partition(" ")[0] for name in cli.COMMANDS})
    assert {name.split()[-1] for name in cli.COMMANDS} <= {word.strip(",:") for word in out.split()}
    assert out.count("epsilon") == 1  # a group has one entry, however many commands
    assert len(out.splitlines()) < 22
    assert max(map(len, out.splitlines())) <= 110


def test_help_of_a_command_and_of_a_group(dpmf):
    code, out, _ = dpmf("try", "--help")
    assert code == 0
    assert all(
        text in out
        for text in (
            "--rating-range",
            "Lowest and highest rating.",
            "--config FILE.toml",
            "--debug",
        )
    )
    code, out, _ = dpmf("data", "--help")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("  dpmf")] == [
        ["dpmf", "data", name] for name in ("list", "check", "convert")
    ]
    assert dpmf("data") == (2, "", out)


def test_version_is_the_installed_one(dpmf):
    from importlib.metadata import version

    assert dpmf("--version") == (0, f"dpmf {version('dpmf-jax')}\n", "")


def test_a_program_that_is_not_there_is_an_internal_error(dpmf, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "gone", ("not written", "experiments.nowhere:Command"))
    code, out, err = dpmf("gone")
    assert (code, out) == (1, "")
    assert (
        "`dpmf gone` is in the table of commands, its program experiments.nowhere is not installed"
        in err
    )


# ---- results -------------------------------------------------------------------------------------


def test_json_is_one_object(dpmf):
    code, out, err = dpmf("try", "ml-1m", "--json", "--rating-range", "1", "5", "--center", "3.5")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "data": "ml-1m",
        "center": 3.5,
        "rating_range": [1.0, 5.0],
        "steps": 10,
        "end": "",
        "json": True,
        "epsilon": "inf",
    }
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_without_greek_letters_ends_no_run(folder, encoding):
    process = start(folder, "try", "ε", "--json", encoding=encoding)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err, json.loads(out)["data"]) == (0, "", "ε")
    assert ("ε" in out) == (encoding == "utf-8")
    process = start(folder, "try", "a", "--end", "σ", encoding=encoding)
    _, err = process.communicate(timeout=60)
    assert err.startswith(
        "error: RuntimeError: two lines of " + ("σ" if encoding == "utf-8" else "\\u03c3")
    )


def test_without_json_the_result_is_rendered(dpmf):
    assert dpmf("try", "a") == (0, "plain text\n", "")


class Pair(NamedTuple):
    left: float
    right: np.ndarray


@dataclass(frozen=True)
class Row:
    path: Path
    pair: Pair


def test_plain_reaches_into_everything_that_results_are_made_of():
    row = Row(Path("runs/a"), Pair(math.nan, np.arange(3)))
    assert console.plain(
        {"row": row, 1: np.float32(0.5), "set": {2, 1}, "none": None, "yes": np.bool_(True)}
    ) == {
        "row": {"path": "runs/a", "pair": {"left": "nan", "right": [0, 1, 2]}},
        "1": 0.5,
        "set": [1, 2],
        "none": None,
        "yes": True,
    }
    with pytest.raises(TypeError, match="no place in a result"):
        console.plain({"x": object()})


@hypothesis.given(st.floats())
def test_a_number_survives_json(number):
    back = json.loads(json.dumps(console.plain(number), allow_nan=False))
    assert isinstance(back, float) == math.isfinite(number)
    assert float(back) == number or math.isnan(number)


@pytest.mark.parametrize(("every", "shown"), [("0", (1, 2, 3)), ("1e9", (3,))])
def test_progress_is_plain_lines_where_there_is_no_terminal(dpmf, every, shown):
    code, out, err = dpmf("try", every, "--end", "progress")
    assert (code, out) == (0, "")
    assert err == "".join(f"fit: {done}/3 rmse 0.9  steps {done}\n" for done in shown)


# ---- settings files ------------------------------------------------------------------------------


def test_flags_win_over_the_file_and_the_file_over_defaults(dpmf, tmp_path):
    file = tmp_path / "fit.toml"
    file.write_text('data = "ml-1m"\nsteps = 7\nrating-range = [1, 5]\ncenter = "global"\n')
    _, out, err = dpmf("try", "--json", "--config", str(file), "--center", "2.5")
    assert err == ""
    assert json.loads(out) | {"end": "", "json": True, "epsilon": "inf"} == {
        "data": "ml-1m",
        "steps": 7,
        "rating_range": [1.0, 5.0],
        "center": 2.5,
        "end": "",
        "json": True,
        "epsilon": "inf",
    }
    other = json.loads(dpmf("try", "other", "--json", f"--config={file}")[1])
    assert (other["data"], other["steps"]) == ("other", 7)


@pytest.mark.parametrize(
    ("text", "error", "fix"),
    [
        ("step = 3", "unknown setting `step`", "did you mean `steps`?"),
        ("rating_rang = 3", "unknown setting `rating_rang`", "did you mean `rating-range`?"),
        (
            "rating-range = [1, 5]\nrating_range = [1, 5]",
            "the setting `rating_range` is there twice",
            "keep one",
        ),
        ('steps = "3"', "`steps` must be a whole number", "not '3'"),
        ("steps = 3.0", "`steps` must be a whole number", "not 3.0"),
        ("steps = true", "`steps` must be a whole number", "not True"),
        ("json = 1", "`json` must be true or false", "not 1"),
        (
            "rating-range = [1, 5, 6]",
            "`rating-range` must be [a number, a number]",
            "not [1, 5, 6]",
        ),
        ('center = "user"', "`center` must be a number or one of 'item', 'global'", "not 'user'"),
        ("steps = ", "the settings file is not TOML", "write lines such as"),
        ("[fit]\nsteps = 3", "unknown setting `fit`", "did you mean"),
        ("steps = 3\nsteps = 4", "the settings file is not TOML", "write lines such as"),
    ],
)
def test_a_settings_file_is_strict(dpmf, tmp_path, text, error, fix):
    file = tmp_path / "fit.toml"
    file.write_text(text)
    code, out, err = dpmf("try", "a", "--config", str(file))
    assert (code, out) == (2, "")
    what, where, mend = err.splitlines()
    assert what.startswith(f"error: {error}")
    assert where == f"where: {file}"
    assert mend.startswith(f"fix: {fix}")


def test_convert_keeps_to_the_annotation():
    assert settings.convert(3, float) == 3.0
    assert isinstance(settings.convert(3, float), float)
    assert settings.convert("a/b", Path | None) == Path("a/b")
    assert settings.convert([1, 2], tuple[int, ...]) == (1, 2)
    assert settings.convert(["a"], list[str]) == ["a"]
    assert settings.convert(1, Literal[1, 2]) == 1
    for value, kind in [
        (True, int),
        (True, float),
        (True, Literal[1, 2]),
        ([1, "a"], tuple[int, ...]),
        ({}, str),
    ]:
        with pytest.raises(TypeError, match="must be"):
            settings.convert(value, kind)


# ---- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [("3", ""), ("None", ""), ("None", "--xla_force_host_platform_device_count=1")],
)
def test_devices_are_made_before_jax_starts(wanted, flags):
    code = f"""
from experiments.cli import devices
count = devices.use({wanted})
import jax
print(count, jax.local_device_count(), jax.default_backend(), devices.cores())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    count, there, backend, cores = done.stdout.split()
    expected = 1 if flags else int(wanted) if wanted != "None" else min(int(cores), 16)
    assert (int(count), int(there), backend) == (expected, expected, "cpu")


def test_too_late_for_devices_is_an_environment_precondition():
    code = """
import jax
jax.local_devices()
from dpmf_jax.errors import PrivacyError, UsageError
from experiments.cli import devices
assert devices.use(1) == devices.use() == 1
for wanted, error in ((2, PrivacyError), (0, UsageError)):
    try:
        devices.use(wanted)
    except error as caught:
        print(caught.what)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "2 devices asked for, jax has already started with 1",
        "0 devices",
    ]


def test_the_installed_command_is_this_one():
    assert importlib.util.find_spec("experiments.cli") is not None
    installed = Path(sys.executable).with_name("dpmf")
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("dpmf ")


def test_budget_alone_shows_the_ledger(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPMF_LEDGER", str(tmp_path / "ledger.jsonl"))
    assert cli.main(["budget"]) == 0
    assert "no release is in the ledger" in capsys.readouterr().out


def test_choices_come_in_order_and_none_is_not_one(capsys):
    assert cli.main(["bench", "nothing"]) == 2
    choices = "('all', 'audit', 'local', 'objective', 'online', 'read', 'scale', 'step', 'sweep')"
    assert (
        f"error: invalid choice 'nothing' for argument 'what'. Expected one of {choices}."
        in capsys.readouterr().err
    )
