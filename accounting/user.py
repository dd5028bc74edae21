"""What all m ratings of one user cost, where the unit is a single rating.

Pure rounds cost m·ε. Gaussian steps cost (a·m² + b·m)·ρ, where a and b follow from how a
mechanism's statistics move. Subsampled steps are a mixture of Gaussians by Binomial(m, q). Nothing
else has a known price.
"""

import functools
import math
from collections.abc import Sequence

from accounting import gaussian, guards, price
from accounting.loss import (
    BestOf,
    Gaussian,
    Loss,
    Pure,
    SubsampledGaussian,
    Unit,
    check_unit,
    times,
)


def losses(spent: Sequence[Loss], num_ratings: int) -> tuple[Loss, ...] | None:
    """What a release spends on a user who changes m ratings; None where no such price is known.

    Gaussian steps spend a·m² + b·m times the ρ, pure rounds m times the ε (group privacy), and the
    best of several runs is one of runs that spend so. For approximate losses there is none, as
    their δ would grow as e^(mε). For subsampled steps there is none either: a mixture of Gaussians
    is no loss of this kind, see `epsilon`.

    Raises:
      ValueError: m is not an integer of at least 1.
    """
    num_ratings = guards.count("num_ratings", num_ratings, 1)
    out: list[Loss] = []
    for loss in spent:
        match loss:
            case Gaussian(user_rho=(a, b)):
                weight = max(1.0, a * num_ratings**2 + b * num_ratings)
                z = loss.noise_multiplier / math.sqrt(weight)
                out.append(
                    Gaussian(noise_multiplier=z, num_steps=loss.num_steps, distance=loss.distance)
                )
            case Pure():
                rounds = loss.num_rounds
                out.append(Pure(epsilon=times(loss.epsilon, num_ratings), num_rounds=rounds))
            case BestOf():
                run = losses(loss.run, num_ratings)
                if run is None:
                    return None
                own = tuple(step for step in run if isinstance(step, Gaussian))
                out.append(BestOf(run=own, stop=loss.stop, shape=loss.shape))
            case _:
                return None
    return tuple(out)


@functools.lru_cache(maxsize=256)
def epsilon(spent: tuple[Loss, ...], delta: float, *, num_ratings: int, unit: Unit) -> float | None:
    """ε of all m ratings of one user at δ, by the smallest accountant; None where it is not known.

    Subsampled steps become a mixture of Gaussians, beside which other losses are priced as `losses`
    says. Only for ratings that are there or not: a user who changes m values would be a pair of
    mixtures, which nothing here prices.
    """
    if check_unit(unit) == "user":
        return None
    sampled = [loss for loss in spent if isinstance(loss, SubsampledGaussian)]
    own = losses([loss for loss in spent if not isinstance(loss, SubsampledGaussian)], num_ratings)
    if own is None:
        return None
    if not sampled:
        return price.epsilon(own, delta, unit=unit)
    if not _is_mixture(sampled, unit) or delta == 0:
        return None
    from accounting import composition

    def mixture(normal: tuple[Loss, ...], delta: float) -> dict[str, float]:
        return {"pld": composition.pld(normal, unit=unit, num_ratings=num_ratings).epsilon(delta)}

    return price.at_a_distance([*own, *sampled], delta, mixture)["pld"]


def rule(spent: Sequence[Loss], delta: float, *, unit: Unit) -> tuple[str, tuple[int, ...]] | None:
    """(how the price follows from m, the m of examples); None where no price is known."""
    kinds = {type(phase) for phase in spent}
    if kinds == {Pure}:
        return "m times ε" if delta == 0 else "m times ε in every round", (20, 100)
    if kinds == {SubsampledGaussian} and _is_mixture(spent, unit):
        return "for a mixture of Gaussians, which m² times ρ does not cover", (20,)
    if kinds == {Gaussian} and (weights := _mean_user_rho(spent)):
        terms = [
            power if weight == 1 else f"{weight:g}·{power}"
            for weight, power in zip(weights, ("m²", "m"), strict=True)
            if weight
        ]
        return f"{terms[0] if len(terms) == 1 else '(' + ' + '.join(terms) + ')'} times ρ", (
            20,
            100,
        )
    if BestOf in kinds:
        return ("for each step by its own kind", (20,)) if losses(spent, 1) is not None else None
    priced = kinds <= {Gaussian, Pure} or (
        kinds <= {Gaussian, Pure, SubsampledGaussian} and _is_mixture(spent, unit)
    )
    if kinds and priced and all(getattr(phase, "user_rho", ()) is not None for phase in spent):
        return "for each phase by its own kind", (20,)
    return None


def _is_mixture(spent: Sequence[Loss], unit: Unit) -> bool:
    """Whether the subsampled steps of a user with m ratings are priced."""
    return unit == "rating presence" and not price.too_many_steps(spent)


def _mean_user_rho(spent: Sequence[Loss]) -> tuple[float, float] | None:
    """Σ ρ_k (a_k m² + b_k m) as ρ (a m² + b m)."""
    phases = [phase for phase in spent if isinstance(phase, Gaussian)]
    weights = [phase.user_rho for phase in phases if phase.user_rho is not None]
    if len(weights) < len(phases):
        return None
    each = [gaussian.rho(phase.noise_multiplier, phase.num_steps) for phase in phases]
    if sum(each) == 0:
        return weights[0]
    a, b = (
        math.fsum(r * pair[k] for r, pair in zip(each, weights, strict=True)) / math.fsum(each)
        for k in (0, 1)
    )
    return a, b
