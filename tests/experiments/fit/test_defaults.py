"""The defaults that help and DEFAULTS.md state are those that a fit takes."""

import dataclasses
import re

import pytest

from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.spec import NOISY_MEANS
from tests.cases import CHECKOUT

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
