"""The file of the ledger: where it is, and that nothing damages it or is lost."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accounting.ledger import parse, to_line
from dpmf_jax.models import ledger
from tests.cases.ledger import LEDGER, entry, run, saved

pytestmark = pytest.mark.usefixtures("books")

GOOD = to_line(entry(0))


def test_where_the_ledger_is(monkeypatch, tmp_path):
    assert ledger.ledger_path(Path("given")) == Path("given")
    assert ledger.ledger_path() == tmp_path / LEDGER
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPMF_LEDGER", "~/mine.jsonl")
    assert ledger.ledger_path() == tmp_path / "home" / "mine.jsonl"
    monkeypatch.delenv("DPMF_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert ledger.ledger_path() == tmp_path / "data" / "dpmf" / "ledger.jsonl"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", unset)
        assert (
            ledger.ledger_path() == tmp_path / "home" / ".local" / "share" / "dpmf" / "ledger.jsonl"
        )


@pytest.mark.parametrize("tail", [to_line(entry(1))[:300], "user,item,rating\n", "\xff\n"])
def test_a_damaged_ledger_is_named_and_never_written_to(capsys, tail):
    LEDGER.parent.mkdir()
    LEDGER.write_bytes(GOOD.encode() + tail.encode("latin-1"))
    before = LEDGER.read_bytes()
    for words in (["show"], ["add", saved("one")]):
        code, out, err = run(capsys, *words)
        assert (code, out) == (3, "")
        assert "ledger" in err.splitlines()[0]
        if tail.isascii():
            assert err.splitlines()[0].startswith("error: line 2 of the ledger cannot be used")
            assert f"where: {LEDGER.absolute()}:2" in err
            assert "take line 2 out" in err
        assert LEDGER.read_bytes() == before


def test_a_last_line_without_its_newline_is_whole(capsys):
    LEDGER.parent.mkdir()
    LEDGER.write_text(GOOD.rstrip("\n"))
    assert run(capsys, "add", saved("one"))[0] == 0
    assert len(parse(LEDGER.read_text())) == 2


def test_a_folder_or_a_device_in_place_of_the_ledger_is_refused(capsys):
    saved("one")
    Path("folder").mkdir()
    for place, told in (
        ("folder", "the ledger is a folder"),
        ("/dev/null", "the ledger is no ordinary file"),
    ):
        for words in (["show"], ["add", "one"]):
            code, _, err = run(capsys, *words, "--ledger", place)
            assert code == 3
            assert told in err
    Path("file").write_text("")
    code, _, err = run(capsys, "add", "one", "--ledger", "file/ledger.jsonl")
    assert code == 3
    assert "the ledger cannot be written" in err
    assert "dpmf budget add MODEL" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_ledger_is_named(capsys):
    LEDGER.parent.mkdir()
    LEDGER.write_text(GOOD)
    LEDGER.chmod(0)
    code, _, err = run(capsys, "show")
    assert code == 3
    assert "the ledger cannot be read: Permission denied" in err


def test_a_full_disk_leaves_the_ledger_as_it_was():
    """A file size limit, in a process of its own, lets the first 100 bytes of the line through."""
    ledger.record(saved("one"))
    saved("two", number=1)
    before = LEDGER.read_bytes()
    code = f"""
import resource, signal
from experiments.cli import main as cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 100},) * 2)
raise SystemExit(cli.main(["budget", "add", "two"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "the ledger cannot be written" in done.stderr
    assert LEDGER.read_bytes() == before


ENTER = """
import dataclasses, hashlib, signal, sys
from pathlib import Path
from accounting.ledger import parse
from dpmf_jax.errors import UsageError
from dpmf_jax.models import ledger
(first,) = parse(Path("first.jsonl").read_text())
def enter(name):
    digest = hashlib.sha256(name.encode()).hexdigest()
    ledger.enter(dataclasses.replace(first, id=digest), ledger.ledger_path())
"""


@pytest.mark.seconds
def test_two_processes_lose_nothing_and_enter_nothing_twice():
    """Each enters 20 releases of its own and 20 that the other enters too."""
    code = f"""{ENTER}
entered = 0
for n in range(20):
    enter(f"{{sys.argv[1]}} {{n}}")
    try:
        enter(f"shared {{n}}")
        entered += 1
    except UsageError:
        pass
print(entered)
"""
    Path("first.jsonl").write_text(GOOD)
    started = [
        subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    assert sum(int(process.communicate()[0]) for process in started) == 20
    assert len(parse(LEDGER.read_text())) == 60


def test_nothing_is_written_while_another_process_reads_or_writes():
    LEDGER.parent.mkdir()
    for lock in (fcntl.LOCK_SH, fcntl.LOCK_EX):
        LEDGER.write_text(GOOD)
        Path("first.jsonl").write_text(GOOD)
        with LEDGER.open() as held:
            fcntl.flock(held, lock)
            code = f"{ENTER}\nsignal.setitimer(signal.ITIMER_REAL, 0.5)\nenter('another')"
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=False
            )
            assert done.returncode == -signal.SIGALRM, done.stderr
            assert LEDGER.read_text() == GOOD
