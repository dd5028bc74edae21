"""Laplace noise, by each coordinate or by its length: prices and scales, safe and tight."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import additive_noise
from accounting.additive_noise import epsilon_laplace, scale_laplace
from tests.cases.roundings import named

positive = st.floats(-100, 100).map(lambda power: 10.0**power)


@given(positive, positive)
def test_laplace_price_and_scale_are_safe_in_decimals_and_tight(epsilon, sensitivity):
    scale = scale_laplace(epsilon, sensitivity)
    price = epsilon_laplace(scale, sensitivity)
    assert price <= epsilon
    assert price == pytest.approx(epsilon, rel=1e-15)
    assert epsilon_laplace(math.nextafter(scale, 0), sensitivity) > epsilon or price == epsilon
    exact = Decimal(repr(sensitivity)) / Decimal(repr(scale))
    assert Decimal(repr(price)) >= exact * (1 - Decimal("1e-27"))


def test_laplace_by_example():
    assert epsilon_laplace(10.0, 1.0) == 0.1
    assert epsilon_laplace(3.0, 1.0) > 1 / 3  # the quotient is no float: the next one above
    assert epsilon_laplace(1e300, 1e-300) > 0
    assert scale_laplace(0.1, 2.0) == 20
    with pytest.raises(ValueError, match="too small"):
        scale_laplace(1e-300, 1e300)


@given(st.lists(st.floats(-50, 50), min_size=6, max_size=6), st.floats(0.1, 10))
def test_log_densities_move_by_no_more_than_the_price(numbers, scale):
    point, shift = numbers[:3], numbers[3:]
    moved = [a - b for a, b in zip(point, shift, strict=True)]
    l1, l2 = sum(map(abs, shift)), math.hypot(*shift)
    if l2 < 1e-6:
        return
    laplace = (sum(map(abs, moved)) - sum(map(abs, point))) / scale
    l2_laplace = (math.hypot(*moved) - math.hypot(*point)) / scale
    assert abs(laplace) <= epsilon_laplace(scale, l1) + 1e-9
    assert abs(l2_laplace) <= epsilon_laplace(scale, l2) + 1e-9


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("function", [epsilon_laplace, scale_laplace])
def test_numbers_out_of_range_are_refused(function, bad):
    for arguments in ((bad, 1.0), (1.0, bad)):
        with pytest.raises(ValueError, match="must be positive and finite"):
            function(*arguments)


def test_a_price_in_decimals_is_the_least_float_whose_name_is_not_below_it():
    for numerator, denominator in np.random.default_rng(0).integers(1, 10**9, (200, 2)).tolist():
        value = Fraction(numerator, denominator)
        found = additive_noise.float_up(value)
        assert named(math.nextafter(found, 0)) < value <= named(found)
        root = additive_noise.root_up(value)
        assert value <= named(root) ** 2
        assert named(math.nextafter(math.nextafter(root, 0), 0)) ** 2 < value
