"""What the randomness of reports and of a projection does to V: exact variances, and the rate.

Paper 004 bounds the largest error of V (theorem 2, corollary 2); the variances behind it are here,
per round and for k rounds, with and without a projection, for both schedules, each tested against
simulation.
"""

from __future__ import annotations

import math

from dpmf_jax.kernels.projection import Law
from dpmf_jax.mechanisms.local.config import Config, Lift
from dpmf_jax.noise import laws as noise


def step_variance(config: Config, *, num_users: int, num_items: int) -> float:
    """The variance of one entry of a round's estimated gradient of V, where all entries are 0.

    It is over coordinates and bits.

    A report is ±c·R·d/g at one of R·d places, g = tanh(ε_report/2), R = m or q, so its variance at
    each is R·d·c²/g²; n reports are averaged (n/k in a partition). Φᵀ leaves it as it is, in the
    mean over Φ; Φ†, Gaussian, multiplies it by q²/(m·(m - q - 1)), and shrinks what it lifts by
    q/m. Entries that are not 0 lower it by their square over n.

    Raises: ValueError where Φ† has no finite mean square, q > m - 2.
    """
    rows = num_items if config.num_projected is None else config.num_projected
    senders = num_users / (config.num_rounds if config.schedule == "partition" else 1)
    gain = noise.one_bit_gain(config.epsilon_report)
    variance = rows * config.rank * (config.clip / gain) ** 2 / senders
    if config.num_projected is None or config.lift == "transpose":
        return variance
    if not num_items - rows - 1 > 0:
        raise ValueError(
            f"num_projected must be at most {num_items - 2} (items - 2) here; got {rows}"
        )
    return variance * rows**2 / (num_items * (num_items - rows - 1))


def run_variance(
    config: Config, *, num_users: int, num_items: int, curvature: float = 0.0
) -> float:
    """The variance of one entry of V after all k rounds: Σ (γ/t)²·c_t² times that of a round.

    It is from the rounds' randomness alone.

    c_t = Π(1 - γh/s) over the rounds s after t, at curvature h. The rounds are independent; that
    V's noise moves later gradients otherwise is left out, as in theorem 2 (whose c_t has λ in place
    of h), and so is λ.
    """
    total = 0.0
    for t in range(1, config.num_rounds + 1):
        rate = config.learning_rate / t
        total = total * (1 - rate * curvature) ** 2 + rate**2
    return total * step_variance(config, num_users=num_users, num_items=num_items)


def projection_variance(
    *,
    squared_norm: float,
    squared_entry: float,
    num_projected: int,
    num_items: int,
    lift: Lift = "transpose",
    law: Law = "gaussian",
) -> float:
    """The variance over Φ of one entry of the lifted Φg, g a column of a gradient.

    It is what Φ adds without any noise.

    Φᵀ: (‖g‖² + g_j²)/q for Gaussian entries, (‖g‖² - g_j²)/q for signs; its mean is g.
    Φ†, Gaussian: ΦᵀΦ's projection P onto a random space of dimension q has E[P] = q/m and
      Var (Pg)_j = a·‖g‖² + (q(q + 2)/(m(m + 2)) - q²/m² - a)·g_j² with a = q(m - q)/(m(m + 2)(m -
      1)).

    Raises: ValueError for Φ† of signs, whose law is not known, or of more rows than items.
    """
    q, m = num_projected, num_items
    if lift == "transpose":
        return (squared_norm + (squared_entry if law == "gaussian" else -squared_entry)) / q
    if law != "gaussian" or not q <= m:
        raise ValueError(
            f"the pseudo-inverse needs law gaussian and at most {m} rows here; got {law}, {q}"
        )
    scatter = q * (m - q) / (m * (m + 2) * max(m - 1, 1))
    return (
        scatter * squared_norm
        + (q * (q + 2) / (m * (m + 2)) - (q / m) ** 2 - scatter) * squared_entry
    )


def rate_bound(config: Config, *, num_users: int, num_items: int, failure: float = 0.05) -> float:
    """The bound on ‖V* - V‖max by theorem 2, or with Φ by corollary 2.

    Theorem 2 has √(md·log(md/β))/((ε/k)·√n), corollary 2 q·d·√(log(qd/β))/((ε/k)·√n).

    V* is from reports, V from descent without privacy after as many rounds; β is the probability
    that it is exceeded. Their constants, which the paper does not give, are left out. In a
    partition ε/k is ε, and n is n/k.
    """
    senders = num_users / (config.num_rounds if config.schedule == "partition" else 1)
    entries = (num_items if config.num_projected is None else config.num_projected) * config.rank
    size = math.sqrt(entries) if config.num_projected is None else entries
    return (
        size * math.sqrt(math.log(entries / failure)) / (config.epsilon_report * math.sqrt(senders))
    )
