"""Help: every flag of every command, in words, with its default, and short enough to be read."""

import dataclasses
import re
from pathlib import Path

import pytest

from dpmf_jax.mechanisms import table
from experiments.cli import main as cli
from experiments.cli.help import WIDEST


def shown(capsys, monkeypatch, *words):
    """The help, and the text on each flag by its name."""
    monkeypatch.setenv("COLUMNS", str(WIDEST))
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--help"])
    text = capsys.readouterr().out
    entries = re.findall(r"\n  --([a-z].*(?:\n {10}.*)*)", text)
    return text, {entry.split()[0]: " ".join(entry.split()) for entry in entries}


@pytest.mark.parametrize("name", table())
def test_help_of_a_mechanism_has_every_flag_with_its_default(name, capsys, monkeypatch):
    text, flags = shown(capsys, monkeypatch, "fit", "--mechanism", name)
    assert len(text.splitlines()) <= 92
    assert max(map(len, text.splitlines())) <= WIDEST
    for field in dataclasses.fields(table()[name].flags):
        about = flags[field.name.replace("_", "-")]
        assert about.endswith("]") or field.default is False, about
        assert len(about.split()) > 4, about
    assert {"test-fraction", "rating-range", "data-dir", "process-id", "json"} <= flags.keys()


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name != "fit"])
def test_help_of_a_command_has_every_field_in_words(name, capsys, monkeypatch):
    words = name.split()
    text, flags = shown(capsys, monkeypatch, *words)
    assert text.startswith(f"usage: dpmf {name} [flags]")
    _module, command = cli._program(name)
    for field in dataclasses.fields(command):
        flag = field.name.replace("_", "-")
        if flag in flags:
            assert len(flags[flag].split()) > 2, flag
        else:  # a positional one
            assert "\narguments:\n" in text, flag


def test_a_settings_file_shows_as_the_default(capsys, monkeypatch, tmp_path):
    file = Path(tmp_path / "fit.toml")
    file.write_text("split-seed = 7\n")
    assert "[7]" in shown(capsys, monkeypatch, "fit", "--config", str(file))[1]["split-seed"]
