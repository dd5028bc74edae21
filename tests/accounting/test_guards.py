"""The guards on numbers: what each lets through, what it refuses, and in which words."""

import decimal
import fractions
import math
import types

import numpy as np
import pytest

from accounting import guards

NAN, INF = math.nan, math.inf
SMALLEST = math.ulp(0.0)
BELOW_ONE = math.nextafter(1.0, 0.0)

INSIDE = (SMALLEST, 0.5, BELOW_ONE)
ALLOWED = {
    guards.positive: (*INSIDE, 1, 1.5, 1e300),
    guards.nonnegative: (0, *INSIDE, 1, 1.5, 1e300),
    guards.finite: (-1, -SMALLEST, 0, *INSIDE, 1, 1.5, 1e300),
    guards.from_zero: (0, *INSIDE, 1, 1.5, 1e300, INF),
    guards.probability: INSIDE,
    guards.delta: (0, *INSIDE),
    guards.rate: (*INSIDE, 1),
    guards.share: (0, *INSIDE, 1),
}
WORDS = {
    guards.positive: "positive and finite",
    guards.nonnegative: "at least 0 and finite",
    guards.finite: "finite",
    guards.from_zero: "at least 0",
    guards.probability: "between 0 and 1, both excluded",
    guards.delta: "at least 0 and below 1, where it would say nothing",
    guards.rate: "above 0 and at most 1",
    guards.share: "between 0 and 1",
}
VALUES = (NAN, INF, -INF, 0, -SMALLEST, -1, SMALLEST, 0.5, BELOW_ONE, 1, 1.5, 1e300)
NO_NUMBERS = (True, False, "1", b"1", None, [1.0], 1j)


def named(value):
    return getattr(value, "__name__", repr(value))


@pytest.mark.parametrize("value", VALUES, ids=named)
@pytest.mark.parametrize("guard", ALLOWED, ids=named)
def test_a_guard_lets_through_what_it_says_and_nothing_else(guard, value):
    if value in ALLOWED[guard]:
        assert guard("x", value) == value
        assert type(guard("x", value)) is float
    else:
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared whole below)
            guard("x", value)
        assert str(refused.value) == f"x must be {WORDS[guard]}, got {value!r}"


@pytest.mark.parametrize("value", NO_NUMBERS, ids=named)
@pytest.mark.parametrize("guard", [guards.number, *ALLOWED], ids=named)
def test_what_is_no_number_is_refused_as_such(guard, value):
    with pytest.raises(ValueError, match=r"^x must be a number, got ") as refused:
        guard("x", value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("guard", [guards.number, *ALLOWED], ids=named)
def test_numbers_of_other_kinds_become_floats_or_are_refused(guard):
    for half in (
        np.float32(0.5),
        np.float64(0.5),
        fractions.Fraction(1, 2),
        decimal.Decimal("0.5"),
        np.array(0.5),
    ):
        assert guard("x", half) == 0.5
        assert type(guard("x", half)) is float
    for value in (10**400, -(10**400), np.array([0.5, 0.5])):
        with pytest.raises(ValueError, match=r"^x must be a number that a float can hold"):
            guard("x", value)


@pytest.mark.parametrize("least", [0, 1, 2])
def test_a_count_is_an_integer_from_its_least_to_its_most(least):
    for value in (least, least + 1, np.int32(least), 10**30):
        assert guards.count("n", value, least) == value
        assert type(guards.count("n", value, least)) is int
    for value in (least - 1, -5, True, False):
        with pytest.raises(
            ValueError, match=f"^n must be an integer of at least {least}, got {value!r}$"
        ):
            guards.count("n", value, least)
    for value in (NAN, INF, -INF, 1.5, 1.0, "1", None, decimal.Decimal(1)):
        with pytest.raises(ValueError, match=r"^n must be an integer, got "):
            guards.count("n", value, least)
    assert guards.count("n", least + 3, least, least + 3) == least + 3
    with pytest.raises(
        ValueError, match=f"^n must be an integer of at most {least + 3}, got {least + 4}$"
    ):
        guards.count("n", least + 4, least, least + 3)


def test_an_interval_is_two_finite_numbers_in_order():
    assert guards.interval("x", (1, 5)) == (1.0, 5.0)
    assert guards.interval("x", np.array([-0.5, 0.5])) == (-0.5, 0.5)
    for pair in ((5, 1), (1, 1), (NAN, 1), (1, NAN), (-INF, 1), (1, INF)):
        with pytest.raises(ValueError, match=r"^x must be two finite numbers, low < high, got "):
            guards.interval("x", pair)


def test_fields_are_held_to_a_guard_and_only_optional_ones_may_be_none():
    owner = types.SimpleNamespace(rank=2, rate=None)
    guards.fields(owner, guards.count, "rank", optional=("rate",))
    with pytest.raises(ValueError, match=r"^rate must be an integer, got None"):
        guards.fields(owner, guards.count, "rank", "rate")
    owner.rate = 0
    with pytest.raises(ValueError, match=r"^rate must be an integer of at least 1, got 0"):
        guards.fields(owner, guards.count, optional=("rate",))


def test_a_delta_of_minus_zero_is_refused():
    with pytest.raises(ValueError, match=r"^x must be at least 0 and below 1"):
        guards.delta("x", -0.0)
