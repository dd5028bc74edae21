"""A guarantee in plain sentences: what is protected, how well, against whom, and what is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accounting import gaussian, user, words
from accounting.digits import printed_delta
from accounting.loss import Gaussian, Loss, distance
from accounting.terms import Terms

TYPICAL = 20  # ratings of a person: a declared number, whose price a statement spells out
NEARLY_ALWAYS = 0.995
LARGE_DELTA = 1e-3  # what shows one rating, or person, of 1,000 has it, at ε = 0

# By the kind of the relation: what is protected, and what somebody guesses about it.
_PROTECTED = {
    "value": ("protected is the value of every single rating", "which of two values a rating has"),
    "presence": (
        "protected is every single rating: whether it is there, and its value",
        "whether a rating is there",
    ),
    "user replaced": (
        "protected are all ratings of every one person: what they say, and of which items",
        "which of two sets of ratings a person has",
    ),
    "user added or removed": (
        "protected are all ratings of every one person: whether there are any, of which items, and"
        " what they say",
        "whether a person's ratings are there",
    ),
    "stated": ("protected is what the relation below says", "which of two such data sets it was"),
}
_NOT_PROTECTED = {
    "value": "who rated what",
    "presence": "all ratings of a person together, at this price",
    "user replaced": "that a person takes part",
}
_GENERAL = "what is true of many people alike, and would be found out without any one of them"


def sentences(g: Terms) -> list[str]:
    """Of a guarantee with a finite price; each may be read without the others."""
    out = []
    if g.seeded:
        out.append(
            "nothing of this holds once the model is shown: whoever knows the seed can take the"
            " noise away"
        )
    what, guess = _PROTECTED[g.relation.kind]
    claim = f"{g.claimed_by or 'somebody'} claims, and nobody proved: "
    out.append(claim * (g.status == "claimed") + what)
    often = _often(right_guesses(g.losses, g.epsilon, g.delta))
    out.append(
        f"somebody who sees the release, knows all else, and guesses {guess}, each as likely"
        f" beforehand, is right {often}; a coin is right 50 times"
    )
    if g.delta > LARGE_DELTA:
        several = "ratings" if g.relation.kind in ("value", "presence") else "people's data"
        out.append(
            f"δ = {printed_delta(g.delta)} is large: to show {int(1000 * g.delta)} in 1,000"
            f" {several}, drawn at random, would keep such a promise; a δ far below one over how"
            " many there are, such as 1e-5, rules that out"
        )
    if g.leaves_open:
        out.append(
            "that is for noise of real numbers; the program's can tell more: see leaves open"
        )
    if own := _whole_person(g):
        out.append(own)
    if g.trust_model == words.CURATOR:
        out.append(
            "it holds against everybody who sees the release, whatever else they know, and not"
            " against the one who holds the ratings"
        )
    else:
        out.append("who sees what, and whom it holds against, stands under trust model")
    beside = _NOT_PROTECTED.get(g.relation.kind)
    out.append(f"not protected is {f'{beside}, nor ' if beside else ''}{_GENERAL}")
    return out


def right_guesses(losses: Sequence[Loss], epsilon: float, delta: float) -> float:
    """How often a guess between two neighbouring data sets can be right, each as likely.

    Half of one more than the total variation, where that is known: Φ(μ/2) of Gaussian steps of
    μ = √(2ρ). Else the bound by (ε, δ): (e^ε + δ)/(1 + e^ε).
    """
    by_price = 1.0 if epsilon > 700 else (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    if not losses or not all(isinstance(phase, Gaussian) for phase in losses):
        return by_price
    steps = [phase for phase in losses if isinstance(phase, Gaussian)]
    rho = math.fsum(gaussian.rho(phase.noise_multiplier, phase.num_steps) for phase in steps)
    normal = 0.5 * math.erfc(-math.sqrt(2 * rho) / 2 / math.sqrt(2))
    return min(by_price, 1.0, normal + distance(losses))


def _often(share: float) -> str:
    if share >= NEARLY_ALWAYS:
        return "nearly always, so next to nothing is promised"
    return f"at most {math.ceil(100 * share - 1e-9)} times in 100"


def _whole_person(g: Terms) -> str | None:
    """What somebody with `TYPICAL` ratings pays for all of them; None where that is not known."""
    try:
        own = g.for_user(TYPICAL)
    except ValueError:
        return None
    share = right_guesses(user.losses(g.losses, TYPICAL) or (), own.epsilon, g.delta)
    return f"about all ratings of a person who has {TYPICAL}, such a guess is right {_often(share)}"
