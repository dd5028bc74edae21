"""Gaussian steps of `dpmf epsilon gaussian` as phases, and the guarantee that they have."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accounting.relation import PRESENCE, stated
from accounting.status import Status
from dpmf_jax.errors import UsageError
from experiments.epsilon.flags import LARGEST_COUNT

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee
    from accounting.loss import Gaussian

SPELLING = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)x([0-9]+)", re.IGNORECASE)


def parse(words: Sequence[str], program: str) -> list[tuple[float, int]]:
    """(z, J) of every phase, in the order in which they are written.

    Raises:
      UsageError: a phase is not written as NOISE_MULTIPLIERxSTEPS, or says no positive number.
    """
    phases = []
    for word in words:
        parts = SPELLING.fullmatch(word)
        try:
            z, steps = (float(parts[1]), int(parts[2])) if parts else (math.nan, 0)
        except ValueError:  # 1.2.3, or more digits than an integer may have
            z, steps = math.nan, 0
        if not (0 < z < math.inf and 1 <= steps <= LARGEST_COUNT):
            raise UsageError(
                "--phases must be positive noise multipliers and whole numbers of steps written as "
                f"NOISE_MULTIPLIERxSTEPS, got {word}",
                where=program,
                fix="--phases 20x1 8x300: one step at z = 20, then 300 at z = 8",
            )
        phases.append((z, steps))
    if not 1 <= sum(steps for _, steps in phases) <= LARGEST_COUNT:
        raise UsageError(
            f"--phases must be at least one, and of {LARGEST_COUNT:.0e} steps at most together",
            where=program,
            fix="--phases 20x1 8x300",
        )
    return phases


def equivalent_steps(losses: Sequence[Gaussian]) -> tuple[float, int]:
    """(z, J) that cost what the phases cost.

    Their own where there is one phase, else one step of all their ρ.
    """
    from accounting import loss, price

    phases = loss.merged(losses)
    if len(phases) == 1 and isinstance(only := phases[0], loss.Gaussian):
        return only.noise_multiplier, only.num_steps
    spent = price.rho(losses)
    assert spent is not None
    return 1 / math.sqrt(2 * spent), 1


_VALUE = stated(
    "two data sets with the same rated pairs, one rating's value differs, by no more than the"
    " sensitivity covers"
)
_CURATOR = (
    "trusted curator: one party holds the ratings, runs the training and reveals nothing but the"
    " release"
)
_GIVEN = (
    "nothing was run: noise, sensitivity and number of steps are as given, and nothing here checks"
    " them"
)
_UP_FRONT = "the number of steps and all settings are chosen without looking at the ratings"
_FIXED_ITEMS = (
    "the item factors are the same in both worlds at every step; they are not, since they follow"
    " raw ratings"
)
# Released, (a, b) of a user's (a·m² + b·m)·ρ, status.
_MECHANISMS: dict[str, tuple[tuple[str, ...], tuple[float, float], Status]] = {
    "gaussian": (("user factors",), (1.0, 0.0), "claimed"),
    "gaussian-joint-noise": (("user factors", "item factors"), (0.5, 0.5), "proved"),
    "gaussian-public-items": (
        ("user factors", "item factors, which were public"),
        (1.0, 0.0),
        "proved",
    ),
}


def losses_of(mechanism: str, phases: Sequence[tuple[float, int]]) -> tuple[Gaussian, ...]:
    """What the phases spend, and with them what all of a user's ratings do."""
    from accounting import loss

    user_rho = _MECHANISMS[mechanism][1]
    return tuple(
        loss.Gaussian(noise_multiplier=z, num_steps=steps, user_rho=user_rho) for z, steps in phases
    )


def guarantee_of(
    mechanism: str,
    losses: Sequence[Gaussian],
    *,
    relation: str,
    sensitivity: float | None,
    delta: float,
) -> Guarantee:
    """The guarantee of steps that nobody ran: those of a mechanism, with the noise that was given.

    Args:
      relation: the flag's word, rating-value or rating-presence.
      sensitivity: of each step, for the record; None where only the noise multipliers are known.
    """
    from accounting import priced

    released, _, status = _MECHANISMS[mechanism]
    presence = relation == "rating-presence"
    mask = (
        "the declared catalogue covers every user and item there could be"
        if presence
        else "who rated what is public"
    )
    other = (
        "a changed value at this price: it may cost up to four times ρ"
        if presence
        else "the presence of a rating"
    )
    return priced(
        mechanism=mechanism,
        losses=losses,
        delta=delta,
        sensitivity=sensitivity,
        unit="rating presence" if presence else "rating value",
        relation=PRESENCE if presence else _VALUE,
        released=released,
        trust_model=_CURATOR,
        status=status,
        claimed_by="paper 001" if status == "claimed" else None,
        real_number_noise=status == "claimed",
        assumptions=(*((_FIXED_ITEMS,) if status == "claimed" else ()), _GIVEN, _UP_FRONT, mask),
        not_covered=(other,),
    )
