"""Numbers as they are printed: never below what they stand for, nor above by a whole digit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import digits


@given(st.floats(0, 1e20), st.integers(0, 12))
def test_round_up_never_rounds_down_nor_by_a_whole_digit(epsilon, places):
    rounded = digits.round_up(epsilon, places)
    assert epsilon <= rounded
    assert rounded <= math.nextafter(epsilon + 10.0**-places, math.inf)


@given(st.floats(0, 1e20), st.integers(0, 12))
def test_what_is_printed_is_not_below_when_it_is_read_back(epsilon, places):
    assert float(f"{digits.round_up(epsilon, places):.{places}f}") >= epsilon


@given(st.integers(0, 10**9), st.integers(0, 6))
def test_a_decimal_with_few_enough_digits_stays_what_its_user_wrote(count, places):
    written = float(f"{count}e-{places}")
    assert digits.round_up(written, places) == written


def test_round_up_by_example():
    assert digits.round_up(6.26153721, 4) == 6.2616
    assert digits.round_up(0.5, 4) == 0.5
    assert digits.round_up(0.1) == 0.1  # though the float is above one tenth
    assert digits.round_up(0.3) == 0.3
    assert digits.round_up(0.1 + 0.2, 4) == 0.3001  # the float 0.30000000000000004
    assert digits.round_up(1e-300, 4) == 1e-4
    assert digits.round_up(0.0, 4) == 0
    assert digits.round_up(1e300, 4) == 1e300
    assert digits.round_up(math.inf, 4) == math.inf


@pytest.mark.parametrize("bad", [(-1.0, 4), (math.nan, 4), (1.0, -1)])
def test_what_cannot_be_rounded_up_is_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        digits.round_up(*bad)
