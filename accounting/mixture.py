"""All m ratings of one user under Poisson sampling: a mixture of Gaussians and its privacy loss.

Each of the m ratings is in the sample by itself with probability q, so the sum moves by at most K·C
with K from Binomial(m, q): the noise N(0, z²) stands against Σ_k P(K = k) N(k, z²), in units of C
(Choquette-Choo, Ganesh, Steinke & Thakurta 2023, corollary 4.7, which dp_accounting's
MixtureOfGaussiansDpEvent cites too). That is more than one step of m·C at rate q in the body and
less than m² times ρ in the tail: no factor in ρ is right.

dp_accounting builds the same distribution, but searches each grid point by recursion: 5 s for m =
20 and 20 s for m = 100 where Newton's method on all points at once takes 0.2 s. A test holds the
two together.
"""

import math

MOST_RATINGS = 10_000
# probability of more sampled ratings than are counted; who composes adds it to δ, step by step
NEGLIGIBLE = 1e-18


def binomial(num_ratings: int, sampling_rate: float):
    """How many of m ratings are sampled, and how probably, without what is all but impossible.

    More than are counted have probability `NEGLIGIBLE`; fewer, where that is below 1e-280, are
    counted as the least that is kept, which can only move the sum further.

    Raises:
      ValueError: m is above `MOST_RATINGS`.
    """
    import numpy as np
    from scipy import stats

    if not num_ratings <= MOST_RATINGS:
        raise ValueError(
            f"num_ratings must be at most {MOST_RATINGS} under sampling, got {num_ratings}"
        )
    counts = np.arange(num_ratings + 1)
    kept = stats.binom.sf(counts - 1, num_ratings, sampling_rate) > NEGLIGIBLE
    kept &= stats.binom.cdf(counts, num_ratings, sampling_rate) > 1e-280
    probabilities = stats.binom.pmf(counts[kept], num_ratings, sampling_rate)
    return counts[kept].astype(float), probabilities / probabilities.sum()


def log_ratio(x, noise_multiplier: float, counts, probabilities):
    """ln of Σ_k p_k N(x; k, z²)/N(x; 0, z²), and its slope; increasing and convex in x."""
    import numpy as np

    variance = noise_multiplier**2
    terms = np.log(probabilities) + (2 * np.multiply.outer(x, counts) - counts**2) / (2 * variance)
    top = terms.max(axis=-1, keepdims=True)
    weights = np.exp(terms - top)
    total = weights.sum(axis=-1)
    return top[..., 0] + np.log(total), weights @ counts / total / variance


def distribution(noise_multiplier: float, counts, probabilities, interval: float):
    """dp_accounting's PrivacyLossDistribution of one step, in both directions, rounded upwards.

    Between grid points it connects the dots.
    """
    from dp_accounting.pld import privacy_loss_distribution

    arguments = (noise_multiplier, counts, probabilities, interval)
    return privacy_loss_distribution.PrivacyLossDistribution(
        _pmf(*arguments, removed=True), _pmf(*arguments, removed=False)
    )


def _pmf(z: float, counts, probabilities, interval: float, *, removed: bool):
    import numpy as np
    from dp_accounting.pld import pld_pmf
    from scipy.special import log_ndtr, ndtr

    ends = np.array([-10 * z, counts[-1] + 10 * z])  # 1e-23 of the mass lies beyond
    low, high = log_ratio(ends, z, counts, probabilities)[0] * (1 if removed else -1)
    grid = np.arange(
        math.floor(min(low, high) / interval), math.ceil(max(low, high) / interval) + 1
    )
    epsilons = grid * interval
    x = _inverse(epsilons if removed else -epsilons, z, counts, probabilities)
    if removed:  # the mixture lies above x, the noise below; e^ε alone would overflow
        deltas = ndtr(np.subtract.outer(counts, x) / z).T @ probabilities - np.exp(
            epsilons + log_ndtr(-x / z)
        )
    else:
        others = np.exp(epsilons[:, None] + log_ndtr(np.subtract.outer(x, counts) / z))
        deltas = ndtr(x / z) - others @ probabilities
    deltas = np.minimum.accumulate(np.clip(deltas, 0, 1))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, int(grid[0]), int(grid[-1]), deltas
    )


def _inverse(losses, z: float, counts, probabilities):
    """x with `log_ratio` equal to each loss; −inf where the loss is below all of them, ln p_0."""
    import numpy as np

    x = np.linspace(-12 * z, counts[-1] + 12 * z, 4001)
    x = np.interp(losses, log_ratio(x, z, counts, probabilities)[0], x)
    for _ in range(
        6
        # convex: from the second on from one side; the step is bounded where the slope all but
        # vanishes
    ):
        value, slope = log_ratio(x, z, counts, probabilities)
        x = x + np.clip((losses - value) / slope, -z, z)
    return np.where((counts[0] == 0) & (losses <= math.log(probabilities[0])), -np.inf, x)
