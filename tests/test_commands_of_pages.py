"""The commands of the pages run, one after the other, in a reader's folder.

MovieLens-100K stands for MovieLens-1M, which has ten times as many ratings.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpmf_jax
from dpmf_jax.training import fit
from experiments.cli import main as cli
from tests.cases import CHECKOUT, distributed
from tests.cases import fit as small
from tests.test_pages import blocks, commands

# Those that take minutes, by their first words: files of tests run them on less data.
LONGER = ("audit", "benchmark", "reproduce 001/fig1")
ENDS = {fit.Diverged.exit_code: "diverged"}  # as the page says beside it, and otherwise 0


def write_own(words):
    """A reader's own files, with the columns that the page says beside the command."""
    rows = [
        (f"u{u}", i, v)
        for u, i, v in zip(small.PAIRS // 7, small.PAIRS % 7, small.VALUES, strict=True)
    ]
    small.write_ratings("mine.csv", rows)
    text = Path("mine.csv").read_text()
    Path("mine.txt").write_text(text.partition("\n")[2])
    Path("seen.csv").write_text(
        "\n".join(["user,item", *(f"{user},{item}" for user, item, _ in rows)])
    )
    Path("budgets.csv").write_text("user,epsilon\n1,1\n2,2\n")
    if "--user-column" in words:
        Path("mine.csv").write_text(text.replace("user,item,rating", "who,what,stars", 1))
    if words[0] == "recommend":
        Path("mine.csv").write_text("item,rating\n1,5\n260,4\n")


@pytest.fixture
def folder(books, tmp_path, monkeypatch, data_dir):
    """What a reader has: real ratings, and a catalogue of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DPMF_DATA", str(Path(data_dir).resolve()))
    Path("users.txt").write_text("\n".join(f"u{user}" for user in range(25)) + "\n")
    Path("items.txt").write_text("\n".join(map(str, range(9))) + "\n")
    return tmp_path


def test_the_first_page_has_commands_of_the_page_of_commands():
    told = list(commands("docs/commands.md"))
    assert all(words in told for words in commands("README.md"))


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("folder")
def test_the_commands_of_the_page_run(capsys):
    lines = "\n".join(blocks("docs/commands.md", "")).splitlines()
    ran = 0
    for told_words in commands("docs/commands.md"):
        beside = [line for line in lines if line.startswith(" ".join(["dpmf", *told_words]) + " ")]
        words = [word.replace("ml-1m", "ml-100k") for word in told_words]
        if " ".join(words).startswith(LONGER):
            continue
        write_own(words)
        code = cli.main(words)
        told = capsys.readouterr()
        said = ENDS.get(code, "no exit code of the page")
        assert code == 0 or (said in told.err and said in beside[0]), (words, told.err)
        ran += 1
    assert ran >= 20


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("folder")
def test_the_command_that_chooses_settings_runs(capsys):
    (words,) = commands("docs/tuning.md")
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "PRIVACY STATEMENT" in out
    assert "entered in the ledger" in out


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("folder")
def test_the_audits_of_a_mechanism_of_ones_own_run_and_find_it_sound(capsys):
    (code,) = blocks("docs/your_mechanism.md", "python")
    Path("item_means.py").write_text(code)
    for words in commands("docs/your_mechanism.md"):
        assert cli.main([*words, "--quick"]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("folder")
def test_the_commands_of_several_processes_run():
    """Over loopback. What is complete has nothing to go on with, and says so."""
    ratings = dpmf_jax.load("ml-100k", data_dir=os.environ["DPMF_DATA"])
    small.write_ratings("ratings.csv", zip(ratings.user, ratings.item, ratings.value, strict=True))
    first, again = commands("docs/processes.md")
    at = first.index("--coordinator") + 1
    assert first[-2:] == ["--process-id", "0"]
    words = [*first[:at], f"127.0.0.1:{distributed.free_port()}", *first[at + 1 : -1]]
    for code, _, said in distributed.ended([start([*words, number]) for number in "01"]):
        assert code == 0, said
    ((code, _, said),) = distributed.ended([start(again)])
    assert code == 2, said
    assert "complete already" in said
    assert again[2] in said


def start(words):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
