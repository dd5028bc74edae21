"""Langevin dynamics on clipped gradients of secret Poisson samples, as Gaussian steps.

They are priced as any other subsampled steps.

Step sizes fall, so every step may have its own noise: thousands of phases, which are put into a few
groups that cost no less. Nothing here uses that a chain comes near a posterior.
"""

import collections
import math
from collections.abc import Sequence

from accounting import guards
from accounting.loss import SubsampledGaussian


def decaying_rates(learning_rate: float, decay: float, num_steps: int) -> list[float]:
    """η_t = η/(1 + b·t/J) for t = 0, …, J − 1: step sizes that fall to 1/(1 + b) of the first.

    Raises:
      ValueError: η is not positive and finite, b is negative, J is not an integer of at least 0.
    """
    learning_rate, decay = (
        guards.positive("learning_rate", learning_rate),
        guards.nonnegative("decay", decay),
    )
    steps = guards.count("num_steps", num_steps, 0)
    return [learning_rate / (1 + decay * t / steps) for t in range(steps)]


def langevin_phases(
    *,
    sampling_rate: float,
    temperature: float,
    clip_norm: float,
    learning_rates: Sequence[float],
    max_phases: int = 32,
    distance: float = 0.0,
) -> tuple[SubsampledGaussian, ...]:
    """Steps of Langevin dynamics as phases: z_t = q·√(2T/η_t)/C.

    The step adds η_t/q times the sampled gradients, each clipped to C, and √(2η_tT) times normals:
    one record moves it by η_tC/q. Steps of equal z are one phase. More than `max_phases` different
    ones are put into that many groups of nearly equal z, each priced at its smallest, which can
    only raise ε: with η falling tenfold over 1,000 steps by 4% for 8 groups, 2% for 16 and 1% for
    32, in a second where a thousand distributions would take minutes.

    Args:
      sampling_rate: q, public, also in the estimate 1/q of the sum's gradient.
      temperature: T; the noise of an exact posterior has T = 1.
      clip_norm: C, of one record's gradient before the step size.
      learning_rates: η_t, step by step, public.
      distance: of the noise of one step from normal noise, in total variation.

    Raises:
      ValueError: a number is not positive and finite.
    """
    sampling_rate = guards.rate("sampling_rate", sampling_rate)
    temperature = guards.positive("temperature", temperature)
    clip_norm = guards.positive("clip_norm", clip_norm)
    max_phases = guards.count("max_phases", max_phases, 1)
    counts: dict[float, int] = {}
    for rate, number in collections.Counter(learning_rates).items():
        z = (
            sampling_rate
            * math.sqrt(2 * temperature / guards.positive("learning_rates", rate))
            / clip_norm
        )
        counts[z] = counts.get(z, 0) + number
    if len(counts) > max_phases:
        low = math.log(min(counts))
        width = math.log(max(counts)) - low or 1.0
        groups: dict[int, tuple[float, int]] = {}
        for z, number in counts.items():
            place = min(max_phases - 1, int((math.log(z) - low) / width * max_phases))
            smallest, others = groups.get(place, (math.inf, 0))
            groups[place] = (min(z, smallest), others + number)
        counts = dict(groups.values())
    return tuple(
        SubsampledGaussian(
            noise_multiplier=z, sampling_rate=sampling_rate, num_steps=number, distance=distance
        )
        for z, number in counts.items()
    )
