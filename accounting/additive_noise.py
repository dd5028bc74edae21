"""Noise that is added to a sum: what rounds of it cost, and which scale a budget buys.

There are three kinds. "laplace" is in every coordinate, "l2_laplace" has density ∝ exp(−‖η‖₂/b)
(radius Gamma(d, b), uniform direction), and "gaussian" is normal. The sensitivity is in the norm of
the noise: L1, L2 and L2.

"laplace" in every coordinate, "l2_laplace" of density ∝ exp(−‖η‖₂/b) (radius Gamma(d, b), uniform
direction), or "gaussian". The sensitivity is in the norm of the noise: L1, L2 and L2.

A float stands for the shortest decimal that names it; a pure ε is exact in these decimals, then
rounded up to a float.
"""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from accounting import decimals, gaussian, guards
from accounting.loss import Gaussian, Loss, Pure

Noise = Literal["laplace", "l2_laplace", "gaussian"]


def loss_of_rounds(
    noise: Noise,
    scale: float,
    sensitivity: float,
    count: int,
    user_rho: tuple[float, float] | None = None,
) -> Loss:
    """ε = T·Δ/b, or T Gaussian steps of z = σ/Δ: what T rounds of noise of this scale spend."""
    if check_noise(noise) == "gaussian":
        z = guards.positive("scale", scale) / sensitivity
        return Gaussian(noise_multiplier=z, num_steps=count, user_rho=user_rho)
    return Pure(epsilon=epsilon_laplace(scale, _of_rounds(count, sensitivity)), num_rounds=count)


def scale_for(
    noise: Noise, epsilon: float, delta: float | None, sensitivity: float, count: int
) -> float:
    """The smallest scale (to 1e-11 relative) at which T rounds cost at most ε.

    At δ for Gaussians; the others take no δ.
    """
    if check_noise(noise) == "gaussian":
        if delta is None:
            raise ValueError(
                "delta must be given for Gaussian noise, which has no finite epsilon without one"
            )
        return gaussian.solve_noise_multiplier(epsilon, delta, count) * sensitivity
    if delta is not None:
        raise ValueError(f"delta must be left out for pure noise ({noise}), got {delta!r}")
    return scale_laplace(epsilon, _of_rounds(count, sensitivity))


def epsilon_laplace(scale: float, sensitivity: float) -> float:
    """ε = Δ/b of independent Laplace noise on every coordinate, or of L2-Laplace noise.

    Laplace noise has density ∝ exp(−|η|/b) (Dwork et al. 2006). For L2-Laplace noise the log-ratio
    of two shifted densities is (‖η′‖ − ‖η‖)/b, which the triangle inequality bounds by Δ/b. The
    dimension decides how much noise that is, not its price.

    Args:
      scale: b, in the units of the query.
      sensitivity: Δ, the largest change of the query for the relation of the release, in any
        dimension: in the L1 norm for Laplace noise, in the L2 norm for L2-Laplace noise.

    Raises:
      ValueError: either is not positive and finite.
    """
    return decimals.float_up(
        decimals.quotient(
            guards.positive("sensitivity", sensitivity), guards.positive("scale", scale)
        )
    )


def scale_laplace(epsilon: float, sensitivity: float) -> float:
    """b = Δ/ε, the smallest scale whose `epsilon_laplace` is at most ε.

    Raises:
      ValueError: ε or Δ is not positive and finite, or b would exceed the largest float.
    """
    scale = decimals.float_up(
        decimals.quotient(
            guards.positive("sensitivity", sensitivity), guards.positive("epsilon", epsilon)
        )
    )
    if not scale < math.inf:
        raise ValueError(
            f"epsilon {epsilon!r} is too small for a sensitivity of {sensitivity!r}: no scale is"
            " finite"
        )
    return scale


def _of_rounds(count: int, sensitivity: float) -> float:
    """T·Δ: T rounds at Δ/b cost together what one round of T times the change costs."""
    return float_up(count * as_fraction("sensitivity", sensitivity))


def float_up(value: Fraction) -> float:
    """The smallest float whose decimal name is not below a positive number."""
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf
    if nearest == math.inf:
        raise ValueError("the numbers are so far apart that their quotient is out of range")
    return (
        nearest if Fraction(Decimal(repr(nearest))) >= value else math.nextafter(nearest, math.inf)
    )


def root_up(square: Fraction) -> float:
    """The smallest float whose decimal, squared, is not below a positive number, or the next."""
    root = math.sqrt(float_up(square))
    return root if Fraction(Decimal(repr(root))) ** 2 >= square else math.nextafter(root, math.inf)


def as_fraction(name: str, value: float) -> Fraction:
    """A positive number as the decimal that names it."""
    return Fraction(Decimal(repr(guards.positive(name, value))))


def check_noise(noise: Noise) -> Noise:
    """The name of the noise itself. Raises: ValueError for another one."""
    if noise not in get_args(Noise):
        raise ValueError(f"noise must be one of {', '.join(get_args(Noise))}, got {noise!r}")
    return noise
