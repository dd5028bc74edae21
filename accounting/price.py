"""ε at a δ of what a release spends (`accounting.loss`), by every accountant that can price it.

| losses                  | basic            | optimal      | closed_form, exact | rdp, pld      |
|-------------------------|------------------|--------------|--------------------|---------------|
| Gaussian steps          | J times (ε, δ/J) |              | `gaussian`         | dp_accounting |
| pure rounds             | Σ ε              | equal rounds |                    | pld: unequal  |
| subsampled, or a mix    |                  |              |                    | `composition` |
| (ε, δ) and nothing else | Σ ε, Σ δ         |              |                    |               |
| the best of runs, beside anything |        |              |                    | rdp alone     |

Beyond ten million subsampled steps pld is left out, which would take minutes; rdp takes as long for
any number. Approximate losses beside others take their Σδ out of δ first. Every number is an upper
bound or exact, so the smallest is valid. δ = 0 has a finite price for pure losses only.

Noise that is not quite normal, but at a distance of t in total variation over all steps, takes
(1 + e^ε)·t out of δ: an event has probability at most p + t in the one world, p ≤ e^ε·q + δ, and q
is at most its probability in the other world and t.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from accounting import gaussian, guards, pure
from accounting.loss import (
    Approximate,
    BestOf,
    Gaussian,
    Loss,
    Pure,
    SubsampledGaussian,
    Unit,
    check_unit,
    distance,
    merged,
    normal,
    times,
    total,
)


def accountants(losses: Sequence[Loss], delta: float, *, unit: Unit) -> dict[str, float]:
    """ε of all losses together at δ, by accountant, bounds first and the exact price last.

    The first call on anything but pure losses imports dp_accounting (a second); subsampled ones
    take seconds.

    Args:
      losses: phases, in any order.
      delta: of the whole, in [0, 1).
      unit: whose change is hidden; it decides the price of subsampled losses.

    Raises:
      ValueError: δ is out of range; the δ of approximate losses alone exceed it, or reach 1, which
        says nothing.
    """
    return dict(_accountants(merged(losses), guards.delta("delta", delta), check_unit(unit)))


def epsilon(losses: Sequence[Loss], delta: float, *, unit: Unit) -> float:
    """The smallest ε of `accountants`."""
    return min(accountants(losses, delta, unit=unit).values())


def exact(losses: Sequence[Loss], delta: float) -> float:
    """The exact ε of Gaussian steps alone at δ, one of `accountants`, in no time.

    Raises:
      ValueError: δ is out of range; losses of another kind, or none.
    """
    spent = rho(losses)
    if spent is None:
        raise ValueError(f"losses must be Gaussian, got {losses!r}")
    if guards.delta("delta", delta) == 0:
        return math.inf
    return at_a_distance(
        merged(losses), delta, lambda _, left: {"exact": gaussian.epsilon_exact(spent, left)}
    )["exact"]


def rho(losses: Sequence[Loss]) -> float | None:
    """ρ = Σ J/(2z²) of Gaussian steps of any noise; None for no loss, or one of another kind."""
    phases = [loss for loss in losses if isinstance(loss, Gaussian)]
    if not phases or len(phases) < len(losses):
        return None
    return math.fsum(gaussian.rho(phase.noise_multiplier, phase.num_steps) for phase in phases)


def too_many_steps(losses: Sequence[Loss]) -> bool:
    """Whether there are more steps on samples than a distribution is composed of in seconds."""
    from accounting import composition

    return (
        sum(loss.num_steps for loss in losses if isinstance(loss, SubsampledGaussian))
        > composition.STEPS_LIMIT
    )


def floor(losses: Sequence[Loss], delta: float) -> float:
    """A bound that no price of these losses is below.

    It does without dp_accounting, which takes seconds.

    Raises:
      ValueError: δ is below what (ε, δ) losses add up to.
    """
    reserved = total(
        times(one.delta, one.num_steps) for one in losses if isinstance(one, Approximate)
    )
    if not reserved <= delta:
        raise ValueError(
            f"delta must be at least {reserved!r}, what the losses add up to, got {delta!r}"
        )
    known = total(
        times(one.epsilon, one.num_steps) for one in losses if isinstance(one, Approximate)
    )
    rounds = [one for one in merged(losses) if isinstance(one, Pure)]
    spent = rho([one for one in losses if isinstance(one, Gaussian)]) or 0.0
    spent += math.fsum(one.rho for one in losses if isinstance(one, BestOf))  # of one run at least
    left = delta - reserved
    if left <= 0:
        noisy = spent > 0 or any(
            isinstance(one, SubsampledGaussian) and one.num_steps for one in losses
        )
        return math.inf if noisy else known + total(one.epsilon for one in rounds)
    parts = [gaussian.epsilon_exact(spent, left), *(_optimal_floor(one, left) for one in rounds)]
    return known + max(parts)


def _optimal_floor(phase: Pure, delta: float) -> float:
    if phase.epsilon in (0.0, math.inf) or phase.num_rounds > 10**6:
        return phase.epsilon if phase.epsilon == math.inf else 0.0
    return pure.epsilon_optimal(phase.epsilon / phase.num_rounds, phase.num_rounds, delta)


def event(losses: Sequence[Loss], *, unit: Unit):
    """The losses as a dp_accounting `DpEvent`; None where one is Approximate, which has no event.

    Gaussian steps have the relation folded into z, to be priced under ADD_OR_REMOVE_ONE; subsampled
    ones are priced under REPLACE_ONE for a rating's value, ADD_OR_REMOVE_ONE otherwise; pure rounds
    are randomised responses, priced under REPLACE_ONE; the best of several runs repeats and selects
    one. No accountant of dp_accounting prices a mix
    of these relations in one go; `accountants` does.
    """
    import dp_accounting

    check_unit(unit)
    events: list[Any] = []
    one: Any
    for loss in merged(losses):
        match loss:
            case Gaussian():
                one = dp_accounting.GaussianDpEvent(loss.noise_multiplier)
            case SubsampledGaussian():
                step = dp_accounting.GaussianDpEvent(loss.noise_multiplier)
                one = dp_accounting.PoissonSampledDpEvent(loss.sampling_rate, step)
            case Pure() if loss.epsilon / loss.num_rounds > 700:  # a lie would be no float
                return dp_accounting.NonPrivateDpEvent()
            case Pure():
                lie = 2 / (1 + math.exp(loss.epsilon / loss.num_rounds))
                one = dp_accounting.dp_event.RandomizedResponseDpEvent(lie, 2)
            case BestOf():
                run: Any = event(loss.run, unit=unit)
                events.append(
                    dp_accounting.dp_event.RepeatAndSelectDpEvent(run, loss.mean_runs, loss.shape)
                )
                continue
            case _:
                return None
        count = loss.num_rounds if isinstance(loss, Pure) else loss.num_steps
        events.append(dp_accounting.SelfComposedDpEvent(one, count))
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


# --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _accountants(losses: tuple[Loss, ...], delta: float, unit: Unit) -> dict[str, float]:
    approximate = [loss for loss in losses if isinstance(loss, Approximate)]
    rest: tuple[Loss, ...] = tuple(loss for loss in losses if not isinstance(loss, Approximate))
    if not approximate:
        return _by_kind(rest, delta, unit)
    reserved = total(times(loss.delta, loss.num_steps) for loss in approximate)
    if not reserved < 1:
        raise ValueError(
            f"the deltas of the phases add up to {reserved:g}, which is 1 or more: that says"
            " nothing"
        )
    added = total(times(loss.epsilon, loss.num_steps) for loss in approximate)
    left = delta - reserved
    if left < 0:
        raise ValueError(
            f"delta must be at least {reserved:g}, what the phases add up to, got {delta!r}"
        )
    if not rest:
        return {"basic": added}
    if not left > 0:
        left = 0.0
    return {name: added + value for name, value in _by_kind(rest, left, unit).items()}


def _by_kind(losses: tuple[Loss, ...], delta: float, unit: Unit) -> dict[str, float]:
    if not losses:
        return {"exact": 0.0}
    if distance(losses):
        return at_a_distance(losses, delta, functools.partial(_by_kind, unit=unit))
    rounds = [loss for loss in losses if isinstance(loss, Pure)]
    if len(rounds) == len(losses):
        return _pure(rounds, delta)
    if delta == 0:
        return {"basic": math.inf}  # no Gaussian has a finite pure ε
    gaussians = [loss for loss in losses if isinstance(loss, Gaussian)]
    if len(gaussians) == len(losses):
        return _gaussian(gaussians, delta)
    return _mixed(losses, delta, unit)


# of δ, the shares that are tried for what noise is short of normal
_SHARES = (2.0**-40, 2.0**-30, 2.0**-20, 2.0**-10, 0.5)


def at_a_distance(
    losses: Sequence[Loss],
    delta: float,
    price_of: Callable[[tuple[Loss, ...], float], dict[str, float]],
) -> dict[str, float]:
    """The prices of normal noise at δ less a share, the smallest that has room for (1 + e^ε)·t.

    Infinite where none has.

    Args:
      price_of: (the same losses with normal noise, δ) -> their prices.
    """
    apart = distance(losses)
    as_normal = tuple(map(normal, losses))
    if not apart:
        return price_of(as_normal, delta)
    found: dict[str, float] = {}
    for share in _SHARES:
        room = math.log(max(share * delta / apart - 1, 1e-300))
        left = math.nextafter(delta * (1 - share), 0.0)
        prices = price_of(as_normal, left)
        found |= {
            name: value for name, value in prices.items() if name not in found and value <= room
        }
        if len(found) == len(prices):
            return {name: found[name] for name in prices}
    return {name: found.get(name, math.inf) for name in prices}


def largest(losses: Sequence[Loss], delta: float) -> float:
    """The ε from which on these losses have no finite price at δ, whatever their noise; inf: none.

    From there on what the noise is short of normal, (1 + e^ε)·t, costs more than all of δ.
    """
    apart = distance(losses)
    return math.log(max(delta / apart - 1, 1e-300)) if apart else math.inf


def _gaussian(losses: list[Gaussian], delta: float) -> dict[str, float]:
    if len(losses) == 1:
        return gaussian.accountants(losses[0].noise_multiplier, losses[0].num_steps, delta)
    spent = rho(losses)
    assert spent is not None
    steps = sum(loss.num_steps for loss in losses)
    prices = gaussian.accountants(1 / math.sqrt(2 * spent), 1, delta)
    basic = math.fsum(
        loss.num_steps
        * gaussian.epsilon_exact(gaussian.rho(loss.noise_multiplier, 1), delta / steps)
        for loss in losses
    )
    return {**prices, "basic": basic}


def _pure(losses: list[Pure], delta: float) -> dict[str, float]:
    basic = total(loss.epsilon for loss in losses)
    if delta == 0 or basic in (0.0, math.inf):
        return {"basic": basic}
    if len(losses) == 1:
        count = losses[0].num_rounds
        each = basic / count if count == 1 else math.nextafter(basic / count, math.inf)
        return {"basic": basic, "optimal": min(basic, pure.epsilon_optimal(each, count, delta))}
    from accounting import composition

    return {"basic": basic, "pld": min(basic, composition.pld(losses, unit="user").epsilon(delta))}


def _mixed(losses: tuple[Loss, ...], delta: float, unit: Unit) -> dict[str, float]:
    from accounting import composition

    prices = {}
    sampled = any(isinstance(loss, SubsampledGaussian) for loss in losses)
    best = any(isinstance(loss, BestOf) for loss in losses)
    if best or not (unit == "rating value" and sampled):
        prices["rdp"] = composition.rdp(losses, unit=unit).epsilon(delta)
    if not (best or (prices and too_many_steps(losses))):
        prices["pld"] = composition.pld(losses, unit=unit).epsilon(delta)
    return prices
