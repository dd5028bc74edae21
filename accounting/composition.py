"""The price of any mix of Gaussian, Poisson-subsampled Gaussian and pure steps.

`pld` adds up the distributions of the losses and is nearly exact; `rdp` adds up their Rényi
divergences. Both are upper bounds by dp_accounting, for adaptive steps; they are slow to compose
and quick to ask.

The neighbouring relation is folded in here and never left to an accountant, because
dp_accounting's two read it differently. A Gaussian's z already holds the Δ of the relation. A
subsampled Gaussian is −C against +C where a rating changes value, and C against nothing in the
other units.

A subsampled step draws a fresh sample, in which every record is with probability q by itself. The
sample has to stay secret. Batches of a fixed size, and batches cut from a shuffled order, are other
mechanisms with other prices (for shuffled ones usually higher): nothing here prices them. All m
ratings of one user are a mixture of Gaussians, see `accounting.mixture`.

A pure loss enters as randomised response, which dominates every mechanism of its ε (Kairouz, Oh &
Viswanath 2015). `Approximate` losses have no distribution of their own and are refused:
`accounting.price` adds them. The best of several runs has Rényi divergences alone
(`accounting.repetition`).
"""

import contextlib
import functools
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from accounting import gaussian, guards, mixture, repetition
from accounting import pure as pure_losses
from accounting.loss import (
    Approximate,
    BestOf,
    Gaussian,
    Loss,
    Pure,
    SubsampledGaussian,
    Unit,
    check_unit,
    merged,
    total,
)

# Steps on samples that are priced by a distribution: 20 s measured there at q = 0.001, z = 10, and
# soon minutes beyond.
STEPS_LIMIT = 10**7
MAX_POINTS = 4e6  # of a grid of privacy losses, 64 MB of complex numbers
MAX_STEP_POINTS = 2e5  # of one step's part of it, which dp_accounting holds in a dict


class Composed(NamedTuple):
    """Composed losses as two upper bounds: ε at a δ in (0, 1), and δ at an ε of at least 0."""

    epsilon: Callable[[float], float]
    delta: Callable[[float], float]


class _Factor(NamedTuple):
    """Equal steps, and what is known of one step's privacy loss.

    count: how many steps there are.
    variance: of one step's privacy loss.
    range: how far apart the least and the largest loss are.
    """

    count: int
    variance: float
    range: float
    distribution: Callable[[float], Any]  # grid interval -> dp_accounting PrivacyLossDistribution
    atoms: bool = False  # the loss takes the two values ±range/2 only


def pld(losses: Sequence[Loss], *, unit: Unit, num_ratings: int = 1) -> Composed:
    """Composition by dp_accounting's privacy loss distributions, rounded upwards.

    The grid follows the whole loss, of standard deviation s in N steps. Its interval is s/(50√N),
    so that rounding N steps widens s by 1e-4 relative. Against intervals four times finer ε is at
    most 1e-4 relative too large for q from 1e-3 to 1, z from 0.3 to 10, J up to 1e5 and δ from 1e-3
    to 1e-9. For q = 1e-4 it is at most 1e-3 too large, as `MAX_STEP_POINTS` holds the grid. It
    takes 0.02 to 2 s.

    Fourier transforms of N steps leave an error of up to N·1e-16 in δ, and nine times that is added
    to every δ. Prices below δ = N·9e-16 are infinite; `rdp` is the better bound from there down.

    Args:
      losses: any mix of Gaussian, SubsampledGaussian and Pure.
      unit: what two neighbouring data sets differ in.
      num_ratings: m ratings that change together, each sampled independently: a mixture of
        Gaussians of sensitivity 0, C, …, m·C by Binomial(m, q). It changes the subsampled losses
        only; the others come priced for the user (`accounting.price.for_user`).

    Raises:
      ValueError: a loss is Approximate or BestOf; ratings of several that change value together are
        sampled; the unit or `num_ratings` is unknown or out of range.
    """
    m = guards.count("num_ratings", num_ratings, 1)
    rho, sampled, pure, best = _by_kind(losses, unit, m)
    if best:
        raise ValueError(
            "the best of several runs has no distribution of privacy losses to compose; rdp prices"
            " it"
        )
    if m > 1 and sampled and unit != "rating presence":
        raise ValueError(
            f"num_ratings {m}: several ratings under Poisson sampling are priced where they are"
            f" added or removed (rating presence), not for the unit {unit}"
        )
    if any(loss.epsilon == math.inf for loss in pure):
        return _constant(math.inf, 1.0)
    factors = [_gaussian_factor(rho)] if rho > 0 else []
    factors += [_pure_factor(loss.epsilon / loss.num_rounds, loss.num_rounds) for loss in pure]
    factors += [_sampled_factor(loss, unit, m) for loss in sampled]
    if not factors:
        return _constant(0.0, 0.0)
    composed = _convolved(factors)
    return (
        composed if rho > 0 or sampled else _at_most(total(loss.epsilon for loss in pure), composed)
    )


def rdp(losses: Sequence[Loss], *, unit: Unit) -> Composed:
    """Composition by dp_accounting's RDP accountant, at its default orders and around the best.

    Where all losses are Gaussian it is `accounting.gaussian.epsilon_rdp`. Of the orders below 2
    only some are tried, since the series of a subsampled step is slow there and may not converge. A
    bound of rounding errors is added to the divergence of each such step. It takes 0.03 to 0.3 s a
    subsampled loss.

    Raises:
      ValueError: a loss is Approximate, or a rating that changes value is sampled.
    """
    rho, sampled, pure, best = _by_kind(losses, unit)
    if sampled and unit == "rating value":
        raise ValueError(
            "dp_accounting's Rényi accountant does not price a changed value under Poisson"
            " sampling; pld does"
        )
    if any(loss.epsilon == math.inf for loss in pure):
        return _constant(math.inf, 1.0)
    if not (rho > 0 or sampled or pure or best):
        return _constant(0.0, 0.0)
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant

    accountants: dict[float, Any] = {}
    default = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    # A subsampled step takes α/300 ms at order α, and 20 ms below 2, where its series may not
    # converge.
    orders = [*default[:9:3], *default[9:]] if sampled else [*default, 1.02, 1.05, 1e4, 1e5]

    def accountant(order: float):
        if order not in accountants:
            of_order = dp_accounting.rdp.RdpAccountant([order])
            of_order.compose(
                dp_accounting.ZCDpEvent(rho=rho, xi=_extra_divergence(order, sampled, pure, best))
            )
            for loss in sampled:
                step = dp_accounting.GaussianDpEvent(loss.noise_multiplier)
                of_order.compose(
                    dp_accounting.PoissonSampledDpEvent(loss.sampling_rate, step), loss.num_steps
                )
            accountants[order] = of_order
        return accountants[order]

    def epsilon(delta: float) -> float:
        delta = guards.probability("delta", delta)
        if not (sampled or pure or best):
            return gaussian.epsilon_rdp(1 / math.sqrt(2 * rho), 1, delta)
        return _smallest(lambda order: (float(accountant(order).get_epsilon(delta)),), orders)

    def delta(at: float) -> float:
        target = guards.nonnegative("epsilon", at)

        def price(order: float) -> tuple[float, float]:  # δ is 1 at most orders where ε is large
            return float(accountant(order).get_delta(target)), float(
                accountant(order).get_epsilon(0.5)
            )

        def converted(order: float) -> tuple[float]:
            divergence = float(accountant(order).rdp[0])
            return ((order - 1) * (divergence - target + math.log1p(-1 / order)) - math.log(order),)

        # By total variation the lowest orders are best, by the conversion higher ones: each has a
        # minimum of its own.
        _smallest(converted, orders)
        return min(
            _smallest(price, orders),
            *(float(one.get_delta(target)) for one in accountants.values()),
        )

    composed = Composed(epsilon, delta)
    return (
        composed
        if rho > 0 or sampled or best
        else _at_most(total(loss.epsilon for loss in pure), composed)
    )


def step_rho(loss: SubsampledGaussian, *, unit: Unit) -> float:
    """ρ of the Gaussian that many such steps come to resemble, by the variance of one's loss.

    It is near the price, but no bound.

    Where a search for a number of steps begins.
    """
    counts, probabilities = mixture.binomial(1, loss.sampling_rate)
    return (
        _variance(loss.noise_multiplier, counts, probabilities, check_unit(unit) == "rating value")
        / 2
    )


def _gaussian_factor(rho: float) -> _Factor:
    def distribution(interval: float):
        from dp_accounting.pld import privacy_loss_distribution as plds

        return plds.from_gaussian_mechanism(
            1 / math.sqrt(2 * rho), value_discretization_interval=interval
        )

    return _Factor(1, 2 * rho, 2 * rho + 20 * math.sqrt(2 * rho), distribution)


def _pure_factor(epsilon: float, rounds: int) -> _Factor:
    """Randomised response, which has the losses ±ε, on a grid by "connect the dots".

    It is exact where ε is a multiple of the interval.
    """

    def distribution(interval: float):
        import numpy as np
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld import privacy_loss_distribution as plds

        points = sorted(
            {op(sign * epsilon / interval) for op in (math.floor, math.ceil) for sign in (-1, 1)}
        )
        grid = np.minimum(np.array(points) * interval, epsilon)  # δ(ε) = 0 from ε on
        deltas = np.where(
            grid <= -epsilon,
            -np.expm1(grid),
            -np.expm1(grid - epsilon) / (1 + math.exp(-epsilon)),
        )
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
            interval, points, np.minimum.accumulate(deltas)
        )
        return plds.PrivacyLossDistribution(pmf)

    return _Factor(rounds, epsilon**2, 2 * epsilon, distribution, atoms=True)


def _sampled_factor(loss: SubsampledGaussian, unit: Unit, num_ratings: int) -> _Factor:
    import numpy as np

    z, q = loss.noise_multiplier, loss.sampling_rate
    replace = unit == "rating value"

    def distribution(interval: float):
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution as plds

        if num_ratings > 1:
            return mixture.distribution(z, *mixture.binomial(num_ratings, q), interval)
        return plds.from_gaussian_mechanism(
            z,
            sampling_prob=q,
            value_discretization_interval=interval,
            neighboring_relation=(
                NeighboringRelation.REPLACE_ONE
                if replace
                else NeighboringRelation.ADD_OR_REMOVE_ONE
            ),
        )

    counts, probabilities = mixture.binomial(num_ratings, q)
    ends = mixture.log_ratio(np.array([-10 * z, counts[-1] + 10 * z]), z, counts, probabilities)[0]
    distance = float(ends[1] - ends[0]) * (2 if replace else 1)
    return _Factor(
        loss.num_steps, _variance(z, counts, probabilities, replace), distance, distribution
    )


def _variance(z: float, counts, probabilities, replace: bool) -> float:
    """Variance of one step's privacy loss where the ratings are in; it only chooses the grid."""
    import numpy as np

    t, spacing = np.linspace(-8, 8, 201, retstep=True)
    weights = np.outer(probabilities, np.exp(-t * t / 2) / math.sqrt(2 * math.pi) * spacing)
    x = counts[:, None] + z * t
    losses = mixture.log_ratio(x, z, counts, probabilities)[0]
    if replace:
        losses = losses - mixture.log_ratio(-x, z, counts, probabilities)[0]
    mean = float(np.sum(weights * losses))
    return float(np.sum(weights * (losses - mean) ** 2))


def _convolved(factors: Sequence[_Factor]) -> Composed:
    steps = sum(factor.count for factor in factors)
    variances = [factor.count * factor.variance for factor in factors]
    deviation = math.sqrt(math.fsum(variances))
    # Atoms are exact: what they are convolved with sets the scale, unless it is too small.
    smooth = math.fsum(v for v, factor in zip(variances, factors, strict=True) if not factor.atoms)
    scale = max(math.sqrt(smooth), deviation / 10)
    interval = max(
        0.02 * scale / math.sqrt(max(steps, 25)),
        max(factor.range for factor in factors) / MAX_STEP_POINTS,
        math.fsum([*(factor.range for factor in factors), 20 * deviation]) / MAX_POINTS,
    )
    atoms = [factor.range / 2 for factor in factors if factor.atoms]
    if atoms and min(atoms) > interval:
        # Randomised response has two losses: they lie on the grid, to the last bit.
        interval = math.ldexp(min(atoms), -math.ceil(math.log2(min(atoms) / interval)))
    parts = [factor.distribution(interval).self_compose(factor.count, 1e-18) for factor in factors]
    whole = functools.reduce(lambda one, other: one.compose(other), parts)
    slack = 9e-16 * steps

    def delta(epsilon: float) -> float:
        return min(
            1.0, float(whole.get_delta_for_epsilon(guards.nonnegative("epsilon", epsilon))) + slack
        )

    return Composed(
        lambda target: gaussian.inverse(delta, guards.probability("delta", target)), delta
    )


def _extra_divergence(
    order: float,
    sampled: Sequence[SubsampledGaussian],
    pure: Sequence[Pure],
    best: Sequence[BestOf],
) -> float:
    """Divergences of randomised response and of rounding errors, which dp_accounting leaves out,
    and of the best of several runs, which it prices at the λ of its orders only.
    """
    divergences = [
        loss.num_rounds * pure_losses.divergence(loss.epsilon / loss.num_rounds, order)
        for loss in pure
    ]
    divergences += [
        loss.num_steps * _rounding(order, loss.noise_multiplier, loss.sampling_rate)
        for loss in sampled
    ]
    divergences += [repetition.divergence(one.rho, one.stop, one.shape, order) for one in best]
    return math.fsum(divergences)


def _rounding(order: float, z: float, q: float) -> float:
    """A bound of what rounding takes from the divergence of one subsampled step.

    The divergence is a sum over i of C(α, i) q^i ….
    """
    # Of the terms, each rounded, and their weight beyond i = 0.
    exponents = math.lgamma(order + 1) + order * (1 - math.log(q)) + (order / z) ** 2
    sampled = order * math.log1p(q * math.exp(min(700.0, (order - 1) / (2 * z * z))))
    return 1e-15 * exponents * min(1.0, math.expm1(min(1.0, sampled))) / (order - 1)


_PARTS = (0.25, 0.5, 0.75)


def _smallest(price: Callable[[float], tuple[float, ...]], orders: Sequence[float]) -> float:
    """The smallest price over the orders, then over real orders ever closer to the best of them.

    Every price is a bound.

    Further entries of a price decide between equal ones.
    """
    prices: dict[float, tuple[float, ...]] = {}
    orders = sorted(orders)
    with _without_warnings():
        for _ in range(5):
            prices.update({order: price(order) for order in orders if order not in prices})
            best = min(range(len(orders)), key=lambda k: prices[orders[k]])
            near = orders[max(best - 1, 0) : best + 2]
            halves = itertools.pairwise(near)
            orders = sorted(
                {*near, *(1 + (a - 1) ** (1 - t) * (b - 1) ** t for a, b in halves for t in _PARTS)}
            )
    return min(prices.values())[0]


@contextlib.contextmanager
def _without_warnings():
    """Silences dp_accounting's warnings of orders that it leaves out.

    Their series do not converge.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _by_kind(
    losses: Sequence[Loss], unit: Unit, num_ratings: int = 1
) -> tuple[float, list[SubsampledGaussian], list[Pure], list[BestOf]]:
    """ρ of all Gaussians, the losses that are really sampled, the pure ones, and choices of runs.

    Phases that cost nothing are left out.
    """
    check_unit(unit)
    rhos, sampled, pure, best = [], [], [], []
    for loss in merged(losses):
        if isinstance(loss, Approximate):
            raise ValueError(
                "an Approximate loss has no distribution to compose; accounting.price adds it to"
                " the rest"
            )
        if isinstance(loss, Gaussian):
            rhos.append(gaussian.rho(loss.noise_multiplier, loss.num_steps))
        elif isinstance(loss, Pure):
            if loss.epsilon > 0:
                pure.append(loss)
        elif isinstance(loss, BestOf):
            best.append(loss)
        else:
            sampled.append(loss)
    everyone = [loss for loss in sampled if loss.sampling_rate == 1]
    # In units of C: −C against +C, or C against nothing.
    distance = num_ratings * (2 if unit == "rating value" else 1)
    rhos += [gaussian.rho(loss.noise_multiplier / distance, loss.num_steps) for loss in everyone]
    return math.fsum(rhos), [loss for loss in sampled if loss.sampling_rate < 1], pure, best


def _at_most(pure: float, composed: Composed) -> Composed:
    """Pure losses alone never cost more than their sum, and nothing is left of δ there."""
    return Composed(
        lambda delta: min(pure, composed.epsilon(delta)),
        lambda epsilon: composed.delta(epsilon) if epsilon < pure else 0.0,
    )


def _constant(epsilon: float, delta: float) -> Composed:
    return Composed(
        lambda at: (guards.probability("delta", at), epsilon)[1],
        lambda at: (guards.nonnegative("epsilon", at), delta)[1],
    )
