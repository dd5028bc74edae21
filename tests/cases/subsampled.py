"""Steps on Poisson samples: what tests draw, and their prices, each composed once."""

import functools
import math

from hypothesis import strategies as st

from accounting import composition
from accounting.loss import SubsampledGaussian

DELTA = 1e-5
PRESENCE, VALUE, USER = "rating presence", "rating value", "user"
NOISE = 5e-4  # of two neighbouring prices: each has its own grid

multipliers = st.floats(math.log(0.5), math.log(10)).map(math.exp)
rates = st.floats(math.log(5e-3), 0).map(lambda power: min(1.0, math.exp(power)))
units = st.sampled_from([PRESENCE, VALUE, USER])


def phases(z, q, num_steps):
    return (SubsampledGaussian(noise_multiplier=z, sampling_rate=q, num_steps=num_steps),)


@functools.lru_cache(maxsize=64)
def pld(losses, unit, num_ratings=1):
    """The composed losses by privacy loss distributions."""
    return composition.pld(losses, unit=unit, num_ratings=num_ratings)


def epsilon_pld(losses, delta, *, unit, num_ratings=1):
    return pld(tuple(losses), unit, num_ratings).epsilon(delta)


def delta_pld(losses, epsilon, *, unit):
    return pld(tuple(losses), unit).delta(epsilon)


def epsilon_rdp(losses, delta, *, unit):
    return composition.rdp(losses, unit=unit).epsilon(delta)


def prices(losses, delta, *, unit):
    """ε by name: pld alone for a changed value, which Rényi's accountant does not price."""
    by_rdp = {} if unit == VALUE else {"rdp": epsilon_rdp(losses, delta, unit=unit)}
    return {**by_rdp, "pld": epsilon_pld(losses, delta, unit=unit)}
