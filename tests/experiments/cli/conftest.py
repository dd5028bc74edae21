"""What the tests of the command line share."""

from pathlib import Path

import pytest

from experiments.cli import main as cli
from tests.cases.program import PROGRAM


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
