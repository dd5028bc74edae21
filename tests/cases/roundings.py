"""Exact arithmetic beside floats, for tests of what is rounded to the safe side."""

from fractions import Fraction

import numpy as np

# Noise multipliers, or any positive settings, over four decades.
MULTIPLIERS = [float(z) for z in 10.0 ** np.random.default_rng(0).uniform(-1, 3, 40)]


def exact(number) -> Fraction:
    """The number itself."""
    return Fraction(float(number))


def named(number: float) -> Fraction:
    """The shortest decimal that names a float."""
    return Fraction(repr(number))


def below(single) -> Fraction:
    """The float32 before this one, towards 0."""
    return exact(np.nextafter(np.float32(single), np.float32(0)))


def above(single) -> Fraction:
    """The float32 after this one."""
    return exact(np.nextafter(np.float32(single), np.float32(np.inf)))
