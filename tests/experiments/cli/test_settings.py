"""Settings files: strict, below the flags and above the defaults."""

import json
from pathlib import Path
from typing import Literal

import pytest

from experiments.cli import settings


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
        ("[fit]\nsteps = 3", "`[fit]` begins a table", "take the line [fit] out"),
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
