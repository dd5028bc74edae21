"""Gaussian steps on secret Poisson samples: what DP-SGD and Langevin dynamics promise.

The prices, and what they rest on, are in `accounting.composition`.
"""

from collections.abc import Sequence

from accounting import guarantee, guards, price
from accounting.guarantee import Guarantee
from accounting.loss import SubsampledGaussian, Unit, check_unit
from accounting.relation import PRESENCE, USER_ADDED_OR_REMOVED, value
from accounting.status import REAL_NUMBERS

_CURATOR = "a curator holds the ratings and the samples; only what is released leaves it"
_RELATION = {"rating presence": PRESENCE, "rating value": value(), "user": USER_ADDED_OR_REMOVED}
_RECORD = {"user": "all of a user's ratings together are one record, sampled and clipped as one"}
_SAMPLED = (
    (
        "at every step each record is in the sample with probability q, independently, and the"
        " sample stays secret; batches of a fixed size or from a shuffled order are not covered"
    ),
    (
        "q, the number of steps, the clip and every denominator are constants fixed without looking"
        " at the ratings"
    ),
    (
        "each sampled record's part is clipped to C as it enters the sum, after every other factor,"
        " and noise is added everywhere that a record could reach, at every step"
    ),
    "the noise is Gaussian, independent of the ratings and never seen",
)
_SKETCH = (
    "the hashes, the initial table and the size of the sketch are public and drawn without looking"
    " at the ratings"
)
_NOT_COVERED = {
    "rating presence": (
        "a changed value at this price: it is a rating removed and another one added"
    ),
    "rating value": "the presence of a rating",
    "user": "what other users' ratings say about a user",
}
_MANY = "all ratings of a user: a mixture of Gaussians is not priced over so many steps"


def sampled_guarantee(
    phases: Sequence[SubsampledGaussian],
    *,
    delta: float,
    clip_norm: float,
    unit: Unit = "rating presence",
    mechanism: str = "sketch-dpsgd",
    released: tuple[str, ...] = ("sketch",),
    sketched: bool = True,
    seeded: bool = False,
) -> Guarantee:
    """(ε, δ) of DP-SGD with secret Poisson samples, on a count sketch or not.

    For a rating's presence, its value, or a user. Proved where each phase says how far its noise
    in whole numbers is from normal noise, and for real-number noise else.

    A rating's update is scattered into the sketch first and clipped there, since written k times,
    with collisions, its norm is another one.

    Args:
      phases: z = σ/C and q, the numbers that noise and sampler read.
      clip_norm: C, for the record.
      sketched: whether there is a sketch to assume anything of; without one the parameters are
        dense.

    Raises:
      ValueError: from `priced`; no phase is given.
    """
    assumptions = (*_SAMPLED, _SKETCH) if sketched else _SAMPLED
    return _guarantee(
        phases,
        delta,
        clip_norm,
        unit,
        mechanism,
        released,
        seeded,
        assumptions=assumptions,
        not_covered=(),
    )


def langevin_guarantee(
    phases: Sequence[SubsampledGaussian],
    *,
    delta: float,
    clip_norm: float,
    unit: Unit = "rating presence",
    mechanism: str = "langevin",
    released: tuple[str, ...] = ("sample of the parameters",),
    seeded: bool = False,
) -> Guarantee:
    """(ε, δ) of Langevin dynamics on clipped gradients of secret Poisson samples, as of DP-SGD.

    The price is that of a finite number of noisy steps (`langevin_phases`). That the chain comes
    near a posterior, from which one draw would be private by itself, is neither used nor shown.

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
        assumptions=(
            *_SAMPLED,
            "the step sizes and the temperature are public; the prior is fixed and not estimated",
        ),
        not_covered=(
            (
                "convergence: clipping changes the distribution that the steps aim at, so this is"
                " no posterior"
            ),
        ),
    )


def _guarantee(
    phases, delta, clip_norm, unit, mechanism, released, seeded, *, assumptions, not_covered
) -> Guarantee:
    check_unit(unit)
    clip_norm = guards.positive("clip_norm", clip_norm)
    if not (phases and all(isinstance(phase, SubsampledGaussian) for phase in phases)):
        raise ValueError("phases: at least one, and each a SubsampledGaussian")
    return guarantee.priced(
        mechanism=mechanism,
        losses=tuple(phases),
        delta=delta,
        unit=unit,
        relation=_RELATION[unit],
        released=released,
        trust_model=_CURATOR,
        status="proved" if all(phase.distance for phase in phases) else REAL_NUMBERS,
        sensitivity=clip_norm * (2 if unit == "rating value" else 1),
        assumptions=(*((_RECORD[unit],) if unit in _RECORD else ()), *assumptions),
        not_covered=(
            _NOT_COVERED[unit],
            *not_covered,
            *((_MANY,) if unit == "rating presence" and price.too_many_steps(phases) else ()),
        ),
        seeded=seeded,
    )
