"""What Gaussian steps on secret Poisson samples cost: DP-SGD on a count sketch, and Langevin dynamics.

A phase is J steps that each draw a fresh sample, every record with probability q by itself, sum the records' parts
clipped to C and add N(0, z²C²) (`accounting.loss.SubsampledGaussian`). The unit decides what the steps hide: for a
rating's presence, or a user, a part that is there or not; for a rating's value, a part that is anything against
anything else, −C against +C at worst, which only the privacy loss distribution prices (dp_accounting's Rényi accountant
refuses it). All m ratings of one user are a mixture of Gaussians, see `accounting.mixture`.

The sample has to stay secret and to be drawn so: batches of a fixed size, and batches cut from a shuffled order, are
other mechanisms with other prices (for shuffled ones usually higher), and nothing here prices them.

`accounting.langevin` writes Langevin dynamics as phases, `accounting.calibration` inverts the prices; their names are
here as well.
"""

from collections.abc import Sequence

from accounting import composition, guarantee, guards, price
from accounting.calibration import solve_langevin_decay as solve_langevin_decay
from accounting.calibration import solve_langevin_rate as solve_langevin_rate
from accounting.calibration import solve_langevin_temperature as solve_langevin_temperature
from accounting.calibration import solve_noise_multiplier as solve_noise_multiplier
from accounting.calibration import solve_num_steps as solve_num_steps
from accounting.calibration import solve_sampling_rate as solve_sampling_rate
from accounting.guarantee import Guarantee
from accounting.langevin import decaying_rates as decaying_rates
from accounting.langevin import langevin_phases as langevin_phases
from accounting.loss import SubsampledGaussian, Unit, check_unit
from accounting.relation import PRESENCE, USER_ADDED_OR_REMOVED, value
from accounting.status import REAL_NUMBERS

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


# ----------------------------------------------------------------------------------------------------------- guarantees

_CURATOR = "a curator holds the ratings and the samples; only what is released leaves it"
_RELATION = {"rating presence": PRESENCE, "rating value": value(), "user": USER_ADDED_OR_REMOVED}
_RECORD = {"user": "all of a user's ratings together are one record, sampled and clipped as one"}
_SAMPLED = (
    "at every step each record is in the sample with probability q, independently, and the sample stays secret; "
    "batches of a fixed size or from a shuffled order are not covered",
    "q, the number of steps, the clip and every denominator are constants fixed without looking at the ratings",
    "each sampled record's part is clipped to C as it enters the sum, after every other factor, and noise is added "
    "everywhere that a record could reach, at every step",
    "the noise is Gaussian, independent of the ratings and never seen",
)
_SKETCH = "the hashes, the initial table and the size of the sketch are public and drawn without looking at the ratings"
_NOT_COVERED = {
    "rating presence": "a changed value at this price: it is a rating removed and another one added",
    "rating value": "the presence of a rating",
    "user": "what other users' ratings say about a user",
}

_MANY = "all ratings of a user: a mixture of Gaussians is not priced over so many steps"


def sampled_guarantee(
    phases: Phases,
    *,
    delta: float,
    clip_norm: float,
    unit: Unit = "rating presence",
    mechanism: str = "sketch-dpsgd",
    released: tuple[str, ...] = ("sketch",),
    sketched: bool = True,
    seeded: bool = False,
) -> Guarantee:
    """DP-SGD with secret Poisson samples, on a count sketch, for a rating's presence, its value, or a user.

    A rating's update is scattered into the sketch first and clipped there, since written k times, with collisions, its
    norm is another one.

    Args:
      phases: z = σ/C and q, the numbers that noise and sampler read.
      clip_norm: C, for the record.
      sketched: whether there is a sketch to assume anything of; without one the parameters are dense.

    Raises:
      ValueError: from `priced`; no phase is given.
    """
    assumptions = (*_SAMPLED, _SKETCH) if sketched else _SAMPLED
    return _guarantee(
        phases, delta, clip_norm, unit, mechanism, released, seeded, assumptions=assumptions, not_covered=()
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
    """Langevin dynamics on clipped gradients of secret Poisson samples, for the steps taken, as DP-SGD is.

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
    clip_norm = guards.positive("clip_norm", clip_norm)
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
        status=REAL_NUMBERS,
        sensitivity=clip_norm * (2 if unit == "rating value" else 1),
        assumptions=(*((_RECORD[unit],) if unit in _RECORD else ()), *assumptions),
        not_covered=(
            _NOT_COVERED[unit],
            *not_covered,
            *((_MANY,) if unit == "rating presence" and price.too_many_steps(phases) else ()),
        ),
        seeded=seeded,
    )


def _checked(phases: Phases) -> tuple[SubsampledGaussian, ...]:
    for phase in phases:
        if not isinstance(phase, SubsampledGaussian):
            raise ValueError(f"phases must be of SubsampledGaussian, got {type(phase).__name__}")
    return tuple(phases)
