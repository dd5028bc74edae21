"""Prices, their ranges and their table, for tests of Gaussian steps."""

import functools
import math
from typing import get_args

import mpmath
from hypothesis import strategies as st

from accounting import gaussian

DELTA = 1e-5
PRICES = {"exact": gaussian.epsilon_exact, "closed_form": gaussian.epsilon_closed_form}
# ε of (z, J, δ), and δ of (z, J, ε), by every name that a solver takes
EPSILON = {
    "exact": lambda z, num_steps, delta: gaussian.epsilon_exact(gaussian.rho(z, num_steps), delta),
    "closed_form": lambda z, num_steps, delta: gaussian.epsilon_closed_form(
        gaussian.rho(z, num_steps), delta
    ),
    "rdp": functools.lru_cache(gaussian.epsilon_rdp),
    "pld": functools.lru_cache(gaussian.epsilon_pld),
}
DELTAS = {
    "exact": lambda z, num_steps, epsilon: gaussian.delta_exact(
        gaussian.rho(z, num_steps), epsilon
    ),
    "closed_form": lambda z, num_steps, epsilon: gaussian.delta_closed_form(
        gaussian.rho(z, num_steps), epsilon
    ),
    "rdp": gaussian.delta_rdp,
    "pld": gaussian.delta_pld,
}
NAMES = get_args(gaussian.Price)

rhos = st.floats(-8, 4).map(lambda power: 10.0**power)
deltas = st.floats(-15, -1).map(lambda power: 10.0**power)
epsilons = st.floats(-3, 3).map(lambda power: 10.0**power)
steps = st.sampled_from([1, 7, 791, 100_000])
prices = st.sampled_from(sorted(PRICES))
usual_rhos = st.floats(-6, 3).map(lambda power: 10.0**power)
usual_deltas = st.floats(-12, -2).map(lambda power: 10.0**power)
names = st.sampled_from(NAMES)

# ε_i, J, closed form, RDP at real order, PLD, exact; δ = 0.01 per step, 1e-5 in all; dp-accounting
# 0.6.0 and 40 digits
TABLE = [
    (0.05, 1, 0.07734, 0.05186, 0.04612, 0.04612),
    (0.05, 1000, 2.57099, 2.20808, 2.03237, 2.03237),
    (0.1, 10, 0.49349, 0.38241, 0.34721, 0.34721),
    (0.1, 300, 2.82991, 2.44347, 2.25071, 2.25071),
    (0.15, 1, 0.23279, 0.17088, 0.15401, 0.15401),
    (0.15, 100, 2.43276, 2.08287, 1.91630, 1.91630),
    (0.15, 1000, 8.48964, 7.74687, 7.20046, 7.20046),
    (0.2, 300, 5.97050, 5.35940, 4.96623, 4.96623),
    (0.3, 10, 1.51153, 1.25872, 1.15375, 1.15375),
    (0.3, 1000, 19.30929, 18.20344, 17.05734, 17.05734),
    (0.4, 300, 13.18366, 12.25505, 11.43799, 11.43799),
    (0.5, 1000, 37.35995, 35.92247, 33.92081, 33.92081),
    (0.8, 300, 31.33801, 29.99119, 28.25939, 28.25939),
    (0.8, 1000, 72.20262, 70.41657, 67.05577, 67.05577),
]


def true_delta(rho, epsilon):
    """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with enough digits that nothing cancels or underflows."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.sqrt(2 * mpmath.mpf(rho)), mpmath.mpf(epsilon)
        upper = mpmath.erfc((epsilon / mu - mu / 2) / mpmath.sqrt(2))
        return (
            upper - mpmath.exp(epsilon) * mpmath.erfc((epsilon / mu + mu / 2) / mpmath.sqrt(2))
        ) / 2


def epsilon_rdp_mironov(rho, delta, orders):
    """min over the orders α of αρ + ln(1/δ)/(α − 1): the paper's conversion (Mironov 2017)."""
    return min(order * rho - math.log(delta) / (order - 1) for order in orders)
