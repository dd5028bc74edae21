"""The defaults that help and DEFAULTS.md state are those that a fit takes."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import NOISY_MEANS
from tests.cases import CHECKOUT
from tests.cases.fit import CATALOGUE, RANGE, run

RATINGS = synthetic.generate(num_users=30, num_items=20, num_ratings=200, rank=2)
CHOICES = ("means", NOISY_MEANS, "l2-laplace")  # words that a flag takes as they stand


def rows():
    """By mechanism, the cells of its row in DEFAULTS.md."""
    lines = (CHECKOUT / "experiments" / "DEFAULTS.md").read_text(encoding="utf-8").splitlines()
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0].strip("`"): row for row in cells if re.fullmatch("`[a-z-]+`", row[0])}


def test_every_mechanism_has_its_defaults_in_the_table():
    stated = {
        name: ", ".join(
            f"{flag.replace('_', ' ')} {value}"
            for flag, value in spec.defaults.items()
            if value != "none"
        )
        for name, spec in table().items()
    }
    assert {name: row[1] for name, row in rows().items()} == stated
    assert all(row[2] for row in rows().values())


@pytest.mark.parametrize("name", table())
def test_every_flag_without_a_default_of_its_own_has_one_in_words(name):
    spec = table()[name]
    fields = dataclasses.fields(spec.flags)
    assert set(spec.defaults) == {field.name for field in fields if field.default is None}


@pytest.mark.one_case
@pytest.mark.parametrize("name", table())
def test_a_fit_that_is_told_its_defaults_is_the_same_fit(name):
    """All numbers, and the words that a flag takes; but users of --dynamic, who have others."""
    spec = table()[name]
    given = {
        flag: str(value) if flag == "center" else value
        for flag, value in spec.defaults.items()
        if (value in CHOICES or not isinstance(value, str)) and flag not in ("join", "leave")
    }
    told, silent = (
        spec.settings(name, spec.flags(**values), RATINGS, None) for values in (given, {})
    )
    assert told == silent


@pytest.mark.usefixtures("elsewhere", "quick_compilation")
def test_without_a_mechanism_a_whole_user_is_hidden(capsys):
    """Which needs a declared catalogue, or a data set that was published with one."""
    code, _, err = run(capsys, "fit", "mine.csv", *RANGE)
    assert code == 4
    assert "--catalogue-users FILE" in err
    assert "--mechanism ridge" in err
    words = ["fit", "mine.csv", *RANGE, *CATALOGUE, "--controls", "none", "--devices", "1"]
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["mechanism"], found["guarantee"]["unit"]) == ("als", "user")
    assert found["guarantee"]["epsilon"] == 4.0


@pytest.mark.usefixtures("elsewhere", "quick_compilation")
def test_a_published_data_set_has_the_catalogue_that_it_was_published_with(capsys, monkeypatch):
    monkeypatch.setenv("DPMF_DATA", str(Path().absolute()))
    rows = Path("mine.csv").read_text().splitlines()[1:]
    rows = [row.removeprefix("u").split(",") for row in rows]
    Path("u.data").write_text("\n".join("\t".join([*row, "0"]) for row in rows) + "\n")
    code, out, err = run(capsys, "fit", "ml-100k", "--controls", "none", "--devices", "1")
    assert code == 0, err
    assert "the catalogue is the one that ml-100k was published with" in out
