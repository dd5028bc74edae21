"""The public grid on which contributions are whole numbers before they are summed.

What one rating contributes is rounded to the grid, and bounded there, by a function of that rating
and of public numbers alone. So a neighbouring data set moves a sum by whole units, and by no more
than the bound says, whatever floats made of the rating before. Sums are taken mod 2^32 (`ring`):
exact in any order, on any number of devices.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms import claims
from dpmf_jax.noise import ring, whole

FINEST = 4096  # units in the width of the declared range
COARSEST = 64

STEP_NUMBERS = 2.0**36  # more than a step can hold
# Of the noise of one step from real normals, in total variation.
STEP_DISTANCE = STEP_NUMBERS * whole.DISTANCE


class Values(NamedTuple):
    """Ratings on a grid: (r - middle)/unit, rounded, from -half to half.

    low, middle, high: float32[], the declared range and its middle.
    unit: float32[], in rating units.
    half: float32[], half the number of units in the range; a whole number.
    """

    low: jax.Array
    middle: jax.Array
    high: jax.Array
    unit: jax.Array
    half: jax.Array


def width(
    sensitivity_in_widths: float,
    noise_multiplier: float,
    *,
    what: str = "the declared range",
    finest: int = FINEST,
) -> int:
    """Units in the declared range: as many as the noise's tables hold, `finest` at most, and even.

    Args:
      sensitivity_in_widths: Δ over the width of the range.
      what: what is as wide, where it is not the range.

    Raises: PrivacyError where it would have fewer than 64 units.
    """
    most = whole.LARGEST / (noise_multiplier * sensitivity_in_widths) * (1 - 2.0**-20)
    units = min(finest, int(most) // 2 * 2)
    if units < COARSEST:
        raise PrivacyError(
            f"the noise multiplier {noise_multiplier:g} is too large",
            where=(
                f"noise is drawn in whole numbers of a grid, and {what} would have fewer than"
                f" {COARSEST} of its units"
            ),
            fix="set a smaller noise multiplier, or a larger ε or δ",
        )
    return units


def values(rating_range: tuple[float, float], units: int) -> Values:
    """The grid of a declared range with so many units."""
    low, high = (jnp.float32(end) for end in rating_range)
    unit = claims.float32_up((float(high) - float(low)) / units)
    return Values(low, (low + high) / 2, high, unit, jnp.float32(units // 2))


def on_grid(grid: Values, ratings: jax.Array) -> jax.Array:
    """int32: each rating clipped to the declared range, less the middle, in whole units.

    Never beyond ±half; not a number counts as the middle.
    """
    steps = jnp.round((jnp.clip(ratings, grid.low, grid.high) - grid.middle) / grid.unit)
    return jnp.clip(jnp.nan_to_num(steps, nan=0.0), -grid.half, grid.half).astype(jnp.int32)


def total(units: jax.Array, present: jax.Array) -> jax.Array:
    """uint32[]: the sum of int32 units where present, mod 2^32."""
    counted = jnp.where(present > 0, units, 0)
    return jax.lax.bitcast_convert_type(jnp.sum(counted, dtype=jnp.int32), jnp.uint32)


def in_units(response: jax.Array) -> jax.Array:
    """float32: a response as a signed number of units; exact below 2^24."""
    return ring.signed(response).astype(jnp.float32)
