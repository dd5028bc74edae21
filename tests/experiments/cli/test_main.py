"""The command as a stranger meets it: three-line errors, exit codes, JSON, settings files, Ctrl-C,
a closed pipe.

The tests bring a program of their own, `PROGRAM`, and enter it in the table of commands.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import main as cli
from tests.cases.program import start

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


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_130_and_so_does_what_ends_a_job(folder, ended_by):
    process = start(folder, "try", "a", "--end", "sleep")
    assert process.stderr.readline() == "ready\n"
    process.send_signal(ended_by)
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
        (["try"], "DATA is missing", "dpmf try --help"),
        (
            ["try", "a", "--step", "3"],
            "there is no flag --step",
            "did you mean --steps?",
        ),
        (["try", "a", "b"], "more than is asked for: b", "dpmf try --help"),
        (
            ["try", "a", "--steps", "x"],
            "Error parsing --steps: invalid literal for int()",
            "dpmf try --help",
        ),
        (["try", "a", "--rating-range", "1"], "--rating-range", "dpmf try --help"),
        (["try", "a", "--config"], "--config needs a value", "--config FILE.toml"),
        (["try", "--epsilon", "3", "--epsilon=4"], "--epsilon is given 2 times", "give --epsilon"),
        (["try", *["--config", "a"] * 3], "--config is given 3 times", "give --config once"),
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
        "error: there is no flag --step",
        "where: dpmf try",
        "fix: did you mean --steps? dpmf try --help",
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
    assert len(out.splitlines()) <= 22  # of the 24 of a terminal
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
    choices = "all, als, audit, local, noise, objective, online, read, scale, step, sweep"
    assert f"error: what takes one of {choices}, not 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["fit", "x.csv", "--epsilon", "abc"], "--epsilon takes a number, not 'abc'", "dpmf fit"),
        (["fit", "x.csv", "--steps", "1.5"], "--steps takes a whole number, not '1.5'", "dpmf fit"),
        (
            ["fit", "x.csv", "--rating-range", "1"],
            "--rating-range takes 2 numbers, not '1'",
            "dpmf fit",
        ),
        (["fit", "x.csv", "--epsilon"], "--epsilon needs a value", "dpmf fit"),
        (["fit", "x.csv", "--epsilom", "3"], "--epsilom", "did you mean --epsilon?"),
        (["evaluate", "m"], "--data is missing", "dpmf evaluate --help"),
    ],
)
def test_what_the_parser_says_is_a_plain_sentence(capsys, words, what, fix):
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert what in said.partition("where:")[0]
    assert fix in said.partition("fix:")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["mine.csv", "--rating-range", "1", "5", "--seed", "3"],
        ["--rating-range", "1", "5", "mine.csv", "--seed", "3"],
        ["--seed", "3", "--rating-range", "-1", "5", "mine.csv"],
    ],
)
def test_a_file_may_stand_behind_a_flag_of_two_values(words):
    from experiments.fit.command import Command

    made = cli.parse("fit", Command, words)
    assert (made.data, made.seed, made.rating_range[1]) == ("mine.csv", 3, 5.0)


def test_one_value_of_two_is_told(dpmf):
    code, _, err = dpmf("fit", "mine.csv", "--rating-range", "1", "--seed", "3")
    assert code == 2
    assert "--rating-range" in err
    assert "Traceback" not in err
