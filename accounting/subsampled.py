"""What Gaussian steps on secret Poisson samples cost: DP-SGD on a count sketch, and Langevin dynamics.

A phase is J steps that each draw a fresh sample, every record with probability q by itself, sum the records' parts
clipped to C and add N(0, z²C²) (`accounting.loss.SubsampledGaussian`). The unit decides what the steps hide: for a
rating's presence, or a user, a part that is there or not; for a rating's value, a part that is anything against
anything else, −C against +C at worst, which only the privacy loss distribution prices (dp_accounting's Rényi accountant
refuses it). All m ratings of one user are a mixture of Gaussians, see `accounting.mixture`.

The sample has to stay secret and to be drawn so: batches of a fixed size, and batches cut from a shuffled order, are
other mechanisms with other prices (for shuffled ones usually higher), and nothing here prices them.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Literal

from accounting import composition, guarantee, price
from accounting.guarantee import Guarantee
from accounting.loss import SubsampledGaussian, Unit, check_unit, merged

Accountant = Literal["pld", "rdp"]

Phases = Sequence[SubsampledGaussian]


# --------------------------------------------------------------------------------------------------------------- prices


def epsilon_rdp(phases: Phases, delta: float, *, unit: Unit) -> float:
    """ε by Rényi divergence (Mironov, Talwar & Zhang 2019), an upper bound; half a second.

    Raises:
      ValueError: unit "rating value", which dp_accounting's Rényi accountant does not price; δ is out of range.
    """
    return composition.rdp(_checked(phases), unit=unit).epsilon(delta)


def epsilon_pld(phases: Phases, delta: float, *, unit: Unit) -> float:
    """ε by the privacy loss distribution, an upper bound within 1e-4 relative; see `composition.pld`.

    Raises:
      ValueError: δ is not in (0, 1), or the unit is unknown.
    """
    return composition.pld(_checked(phases), unit=unit).epsilon(delta)


def delta_pld(phases: Phases, epsilon: float, *, unit: Unit) -> float:
    """δ(ε) by the privacy loss distribution, an upper bound, 0 only without a step."""
    return composition.pld(_checked(phases), unit=unit).delta(epsilon)


def accountants(phases: Phases, delta: float, *, unit: Unit) -> dict[str, float]:
    """ε by name, rdp before pld; pld alone for the unit "rating value"."""
    prices = {} if unit == "rating value" else {"rdp": epsilon_rdp(phases, delta, unit=unit)}
    return {**prices, "pld": epsilon_pld(phases, delta, unit=unit)}


def epsilon_user(phases: Phases, delta: float, *, num_ratings: int) -> float:
    """ε for all m ratings of one user, there or not, each sampled by itself; an upper bound like `epsilon_pld`.

    Not m² in ρ: at m = 20, q = 0.01, z = 1, 100 steps and δ = 1e-6 that would say 15.3 where 21.7 is true.
    Ratings that change value are not priced: they are a pair of mixtures.

    Raises:
      ValueError: m is not an integer of at least 1, or δ is out of range.
    """
    return composition.pld(_checked(phases), unit="rating presence", num_ratings=num_ratings).epsilon(delta)


def event(phases: Phases, *, unit: Unit):
    """The phases as a dp_accounting event of Poisson-sampled Gaussians.

    To be priced under REPLACE_ONE for the unit "rating value" (its PLDAccountant knows that σ/C then stands for −C
    against +C) and under ADD_OR_REMOVE_ONE otherwise.
    """
    return price.event(_checked(phases), unit=unit)


# ------------------------------------------------------------------------------------------------------------- inverses


def solve_noise_multiplier(
    epsilon: float, delta: float, *, sampling_rate: float, num_steps: int, unit: Unit, accountant: Accountant = "pld"
) -> float:
    """The smallest z (to 1e-5 relative) at which J steps at rate q cost at most ε at δ. Ten prices: seconds.

    Args:
      epsilon, delta: the target; ε > 0, 0 < δ < 1.
      accountant: what the target is stated in, "pld" or "rdp".

    Raises:
      ValueError: a number is out of range; or no z in [1e-3, 1e6] is the answer (where q·J is below δ any noise does).
    """
    epsilon_of = _priced(accountant, delta, unit)

    def excess(log_z: float) -> float:
        phase = SubsampledGaussian(noise_multiplier=math.exp(log_z), sampling_rate=sampling_rate, num_steps=num_steps)
        return _excess(epsilon_of((phase,)), epsilon)

    return math.exp(_cheapest(excess, "noise_multiplier", 1e-3, 1e6, start=1.0, sign=1))


def solve_sampling_rate(
    epsilon: float, delta: float, *, noise_multiplier: float, num_steps: int, unit: Unit, accountant: Accountant = "pld"
) -> float:
    """The largest q (to 1e-5 relative) at which J steps at noise z cost at most ε at δ; 1 where all data may be used.

    Raises:
      ValueError: a number is out of range, or q would be below 1e-9.
    """
    epsilon_of = _priced(accountant, delta, unit)

    def excess(log_q: float) -> float:
        q = min(1.0, math.exp(log_q))
        phase = SubsampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=q, num_steps=num_steps)
        return _excess(epsilon_of((phase,)), epsilon)

    if excess(0.0) <= 0:
        return 1.0
    return min(1.0, math.exp(_cheapest(excess, "sampling_rate", 1e-9, 1.0, start=0.01, sign=-1)))


def solve_num_steps(
    epsilon: float,
    delta: float,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    unit: Unit,
    accountant: Accountant = "pld",
) -> int:
    """The largest J at which J steps cost at most ε at δ, up to the accuracy of the price; 0 where one is too dear.

    Raises:
      ValueError: a number is out of range, or more than 1e8 steps are affordable.
    """
    epsilon_of = _priced(accountant, delta, unit)

    @functools.cache
    def excess(steps: int) -> float:
        phase = SubsampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_steps=steps)
        return _excess(epsilon_of((phase,)), epsilon)

    if excess(1) > 0:
        return 0

    def excess_of_log(log_steps: float) -> float:
        return excess(max(1, round(math.exp(log_steps))))

    steps = round(math.exp(_cheapest(excess_of_log, "num_steps", 0.5, 1e8, start=1.0, sign=-1)))
    while excess(steps) > 0:
        steps -= 1
    while excess(steps + 1) <= 0:
        steps += 1
    return steps


# ---------------------------------------------------------------------------------------------------- Langevin dynamics


def decaying_rates(learning_rate: float, decay: float, num_steps: int) -> list[float]:
    """η_t = η/(1 + b·t/J) for t = 0, …, J − 1: step sizes that fall to 1/(1 + b) of the first.

    Raises:
      ValueError: η is not positive and finite, b is negative, J is not an integer of at least 0.
    """
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    if not 0 <= decay < math.inf:
        raise ValueError(f"decay must be at least 0 and finite, got {decay!r}")
    steps = operator.index(num_steps)
    if not steps >= 0:
        raise ValueError(f"num_steps must be at least 0, got {num_steps!r}")
    return [learning_rate / (1 + decay * t / steps) for t in range(steps)]


def langevin_phases(
    *,
    sampling_rate: float,
    temperature: float,
    clip_norm: float,
    learning_rates: Sequence[float],
    max_phases: int = 32,
) -> tuple[SubsampledGaussian, ...]:
    """Steps of Langevin dynamics as phases: z_t = q·√(2T/η_t)/C.

    The step adds η_t/q times the sampled gradients, each clipped to C, and √(2η_tT) times normals: one record moves it
    by η_tC/q. Steps of equal z are one phase. More than `max_phases` different ones are put into that many groups of
    nearly equal z, each priced at its smallest, which can only raise ε: with η falling tenfold over 1,000 steps by
    4% for 8 groups, 2% for 16 and 1% for 32, in a second where a thousand distributions would take minutes.

    Args:
      sampling_rate: q, public, also in the estimate 1/q of the sum's gradient.
      temperature: T; the noise of an exact posterior has T = 1.
      clip_norm: C, of one record's gradient before the step size.
      learning_rates: η_t, step by step, public.

    Raises:
      ValueError: a number is not positive and finite.
    """
    for name, value in (("temperature", temperature), ("clip_norm", clip_norm)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
    if not operator.index(max_phases) >= 1:
        raise ValueError(f"max_phases must be at least 1, got {max_phases!r}")
    multipliers = []
    for rate in learning_rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"learning_rates must be positive and finite, got {rate!r}")
        multipliers.append(sampling_rate * math.sqrt(2 * temperature / rate) / clip_norm)
    if len(set(multipliers)) > max_phases:
        low, high = math.log(min(multipliers)), math.log(max(multipliers))
        groups: dict[int, float] = {}
        places = [min(max_phases - 1, int((math.log(z) - low) / (high - low) * max_phases)) for z in multipliers]
        for place, z in zip(places, multipliers, strict=True):
            groups[place] = min(z, groups.get(place, math.inf))
        multipliers = [groups[place] for place in places]
    return tuple(
        phase
        for phase in merged(
            [SubsampledGaussian(noise_multiplier=z, sampling_rate=sampling_rate, num_steps=1) for z in multipliers]
        )
        if isinstance(phase, SubsampledGaussian)
    )


# ----------------------------------------------------------------------------------------------------------- guarantees

_CURATOR = "a curator holds the ratings and the samples; only what is released leaves it"
_RELATION: dict[str, str] = {
    "rating presence": "one rating is added or removed, by any user, of any item, with any value",
    "rating value": "one rating has another value, any other; who rated what is the same",
    "user": "one user with all ratings is added or removed",
}
_RECORD = {"user": "all of a user's ratings together are one record, sampled and clipped as one"}
_SAMPLED = (
    "at every step each record is in the sample with probability q, independently, and the sample stays secret; "
    "batches of a fixed size or from a shuffled order are not covered",
    "q, the number of steps, the clip and every denominator are constants fixed without looking at the ratings",
    "each sampled record's part is clipped to C as it enters the sum, after every other factor, and noise is added "
    "everywhere that a record could reach, at every step",
    "the noise is Gaussian, of real numbers, independent of the ratings and never seen",
)
_SKETCH = "the hashes, the initial table and the size of the sketch are public and drawn without looking at the ratings"
_NOT_COVERED = {
    "rating presence": "a changed value at this price: it is a rating removed and another one added",
    "rating value": "the presence of a rating",
    "user": "what other users' ratings say about a user",
}


def sampled_guarantee(
    phases: Phases,
    *,
    delta: float,
    clip_norm: float,
    unit: Unit = "rating presence",
    mechanism: str = "sketch-dpsgd",
    released: tuple[str, ...] = ("sketch",),
    seeded: bool = False,
) -> Guarantee:
    """DP-SGD on a count sketch with secret Poisson samples: proved, for a rating's presence, its value, or a user.

    A rating's update is scattered into the sketch first and clipped there, since written k times, with collisions, its
    norm is another one.

    Args:
      phases: z = σ/C and q, the numbers that noise and sampler read.
      clip_norm: C, for the record.

    Raises:
      ValueError: from `priced`; no phase is given.
    """
    return _guarantee(
        phases, delta, clip_norm, unit, mechanism, released, seeded, assumptions=(*_SAMPLED, _SKETCH), not_covered=()
    )


def langevin_guarantee(
    phases: Phases,
    *,
    delta: float,
    clip_norm: float,
    unit: Unit = "rating presence",
    mechanism: str = "langevin",
    released: tuple[str, ...] = ("sample of the parameters",),
    seeded: bool = False,
) -> Guarantee:
    """Langevin dynamics on clipped gradients of secret Poisson samples: proved, for the steps taken, as DP-SGD is.

    The price is that of a finite number of noisy steps (`langevin_phases`). That the chain comes near a posterior, from
    which one draw would be private by itself, is neither used nor shown.

    Raises:
      ValueError: from `priced`; no phase is given.
    """
    return _guarantee(
        phases,
        delta,
        clip_norm,
        unit,
        mechanism,
        released,
        seeded,
        assumptions=(*_SAMPLED, "the step sizes and the temperature are public; the prior is fixed and not estimated"),
        not_covered=("convergence: clipping changes the distribution that the steps aim at, so this is no posterior",),
    )


def sketch_published_guarantee(*, num_steps: int, clip_threshold: float | None = None) -> Guarantee:
    """Paper 002 as published: no guarantee.

    Its theorem needs an exact draw from the posterior. Count-sketch SGD is deterministic given hashes, initial table
    and order of the ratings, so with these public the loss is infinite as soon as a prediction moves with one rating.
    """
    threshold = "" if clip_threshold is None else f" (here {clip_threshold:g})"
    return guarantee.no_guarantee(
        mechanism="sketch",
        num_steps=num_steps,
        released=("sketch",),
        unit="rating presence",
        reason=f"ε here is a clipping threshold of the log-likelihood{threshold}, not a privacy parameter: given the "
        "hashes, the initial table and the order of the ratings, training adds no noise, and no draw from a posterior "
        "is made",
    )


def _guarantee(phases, delta, clip_norm, unit, mechanism, released, seeded, *, assumptions, not_covered) -> Guarantee:
    check_unit(unit)
    if not 0 < clip_norm < math.inf:
        raise ValueError(f"clip_norm must be positive and finite, got {clip_norm!r}")
    if not phases:
        raise ValueError("phases: at least one")
    return guarantee.priced(
        mechanism=mechanism,
        losses=_checked(phases),
        delta=delta,
        unit=unit,
        relation=_RELATION[unit],
        released=released,
        trust_model=_CURATOR,
        status="proved",
        sensitivity=float(clip_norm) * (2 if unit == "rating value" else 1),
        assumptions=(*((_RECORD[unit],) if unit in _RECORD else ()), *assumptions),
        not_covered=(_NOT_COVERED[unit], *not_covered),
        seeded=seeded,
    )


# ------------------------------------------------------------------------------------------------------------- numerics


def _priced(accountant: str, delta: float, unit: Unit) -> Callable[[Phases], float]:
    by_name = {"pld": epsilon_pld, "rdp": epsilon_rdp}
    if accountant not in by_name:
        raise ValueError(f"accountant must be one of {', '.join(by_name)}, got {accountant!r}")
    return lambda phases: by_name[accountant](phases, delta, unit=unit)


def _excess(price: float, epsilon: float) -> float:
    """ln(price/ε) within ±30, so that a root search may meet prices of 0 and infinity."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon!r}")
    if price == math.inf:
        return 30.0
    return max(-30.0, min(30.0, math.log(price / epsilon))) if price > 0 else -30.0


def _cheapest(
    excess: Callable[[float], float], name: str, least: float, most: float, *, start: float, sign: int
) -> float:
    """ln of the unknown at which the price all but reaches the target, never above it; more is cheaper if sign is 1."""
    from scipy.optimize import brentq

    low, high, far = math.log(least), math.log(most), sign * math.log(4)
    cheap = dear = math.log(start)
    while excess(cheap) > 0:
        if not low < cheap < high:
            raise ValueError(f"no {name} between {least:g} and {most:g} costs as little as that")
        dear, cheap = cheap, min(max(cheap + far, low), high)
    while cheap == dear or excess(dear) <= 0:
        if not low < dear < high:
            raise ValueError(f"{name} {math.exp(dear):g} costs less than that, and nothing beyond is tried")
        cheap, dear = dear, min(max(dear - far, low), high)
    root, nudge = brentq(excess, cheap, dear, xtol=2e-6), 2e-6
    while excess(root) > 0:
        root, nudge = root + sign * nudge, 2 * nudge
    return root


def _checked(phases: Phases) -> tuple[SubsampledGaussian, ...]:
    for phase in phases:
        if not isinstance(phase, SubsampledGaussian):
            raise ValueError(f"phases must be of SubsampledGaussian, got {type(phase).__name__}")
    return tuple(phases)
