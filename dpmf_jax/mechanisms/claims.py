"""What mechanisms of a trusted curator share: relations, assumptions, and rounding to float32."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from accounting import guards, relation, words
from dpmf_jax.errors import PrivacyError

Relation = Literal["rating value", "rating presence"]
ALWAYS = (words.SETTINGS, words.CATALOGUE, words.FLOAT32_NORMALS)
WHOLE = (words.SETTINGS, words.CATALOGUE, words.ROUNDED_NORMALS)  # of noise in whole numbers


def neighbours(unit: Relation, span: float) -> relation.Relation:
    """The relation of a mechanism whose relation is written as its unit.

    span: τ, the largest change that the noise is made for.
    """
    return relation.PRESENCE if unit == "rating presence" else relation.value(span)


def not_covered(unit: Relation) -> str:
    """What the guarantee of this unit says nothing about."""
    if unit == "rating presence":
        return (
            "a changed value at this price: it may move the statistics twice as far, for up to four"
            " times ρ"
        )
    return "the presence of a rating"


def width(rating_range: tuple[float, float]) -> float:
    """The width of the declared range, as it is or as float32 holds its ends: the larger one."""
    low, high = rating_range
    return max(high - low, float(np.float32(high)) - float(np.float32(low)))


def check(rating_range: tuple[float, float], tau: float | None, unit: str, delta: float) -> None:
    """Raises: ValueError or PrivacyError for what no guarantee can be given for."""
    guards.interval("rating_range", rating_range)
    widest = width(rating_range)
    if tau is not None and not widest <= tau < math.inf:
        raise PrivacyError(
            f"tau {tau:g} is below the width {widest:g} of the declared rating range",
            where="tau bounds the change of one rating: the noise would be too small for its price",
            fix=f"set tau to {widest:g} or more, or leave it out",
        )
    if unit not in ("rating value", "rating presence"):
        raise ValueError(f"relation must be 'rating value' or 'rating presence'; got {unit!r}")
    guards.probability("delta", delta)


def float32_up(x: float) -> jax.Array:
    """float32 not below x, so that the noise is never less than what is priced."""
    single = np.float32(x)
    return jnp.asarray(single if float(single) >= x else np.nextafter(single, np.float32(np.inf)))


def float32_down(x: float | int) -> jax.Array:
    """float32 not above x, so that no clip or sampling rate is above what is priced."""
    single = np.float32(x)
    return jnp.asarray(single if float(single) <= x else np.nextafter(single, np.float32(0)))


def no_coins(key: jax.Array) -> None:
    """No coins: every rating takes part in every step."""
    del key
