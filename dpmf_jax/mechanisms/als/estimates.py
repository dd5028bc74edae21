"""What is made of noisy sums: item means and item factors. All of it is post-processing.

Ratings are in quarters of the width of the range here, less its middle. Every number of a response
is known to hold normal noise of one standard deviation; what it says is weighed against a prior
whose variance is estimated from the same responses (empirical Bayes), so an item that has only
noise gets what popularity predicts, and no factors.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LEAST = 1e-4  # a variance between items
LAST = -1e6  # below the length of any axis that is learned
NEAR = 0.1  # variance beside which the noise of an item counts, where moments are taken


class Means(NamedTuple):
    """Item means, from all passes so far: float32[items] each.

    precision: of the sum of what the passes said, one over its variance.
    total: what they said, times their precisions.
    center: the estimate.
    """

    precision: jax.Array
    total: jax.Array
    center: jax.Array


def positive_counts(count: Float[Array, " items"], deviation: jax.Array) -> Float[Array, " items"]:
    """Σ w of each item's raters, from noisy ones: at least half of the noise's deviation."""
    return jnp.maximum(count, deviation / 2)


def mean_weight(
    count: Float[Array, " items"], num_users: int | Float[Array, ""]
) -> Float[Array, ""]:
    """w of a typical rating: Σ_i Σ_u w is Σ_u √m, which is the number of users over this."""
    return jnp.clip(num_users / jnp.maximum(jnp.sum(count), 1.0), 1e-3, 1.0)


def signal(
    count: Float[Array, " items"],
    num_users: int | Float[Array, ""],
    deviation: Float[Array, ""],
    settings: tuple[jax.Array, ...],
    rank: int,
) -> Float[Array, ""]:
    """How far factors stand out of the noise of ratings, and of messages, before any is sent.

    It is √(ratings of a typical user · of a typical rating's item), times what one factor explains
    of a rating over the variance of the rest: below 1 it would not be found even without privacy.
    The noise in messages makes that variance as many times as large as it makes that of their sums.
    It is 0 where a typical user has fewer ratings than factors to learn from them.

    Args:
      count: positive. deviation: of the noise in the sums of all passes together.
      settings: (s², λ_u, signal).
    """
    noise_variance, regularization, explained = settings
    weight = mean_weight(count, num_users)
    total = jnp.sum(count)
    typical, raters = 1 / (weight * weight), jnp.sum(count**2) / total / weight
    ratio = explained / (rank * noise_variance)
    told = typical * ratio / (1 + typical * ratio)
    from_users = total / len(count) * weight * noise_variance * told / regularization
    found = jnp.sqrt(typical * raters) * ratio
    found = found / (1 + deviation * deviation / from_users)
    return jnp.where(typical < rank, 0.0, found)


def from_messages(
    center: Float[Array, " items"],
    sums: Float[Array, " items"],
    scale: Float[Array, ""],
    count: Float[Array, " items"],
    num_users: int | Float[Array, ""],
    deviation: Float[Array, ""],
    noise_variance: Float[Array, ""],
) -> tuple[Float[Array, " items"], Float[Array, " items"]]:
    """(what a pass says of each item's mean, its variance).

    Args:
      center: that users answered to.
      sums: Σ s·w·e of each item's raters, noisy. scale: the mean of s. count: positive.
      deviation: of the noise in a sum. noise_variance: of a rating.
    """
    seen = count * jnp.clip(scale, 0.1, 1.0)
    from_users = noise_variance * mean_weight(count, num_users) / count
    return center + sums / seen, (deviation / seen) ** 2 + from_users


def means(
    before: Means,
    said: Float[Array, " items"],
    variance: Float[Array, " items"],
    count: Float[Array, " items"],
) -> Means:
    """The means after one more pass, which said so much with so large a variance."""
    precision = before.precision + 1 / variance
    total = before.total + said / variance
    raw, variance = total / precision, 1 / precision
    weight = 1 / (variance + 2 * NEAR)
    predicted = _by_popularity(raw, count, weight)
    squared = (raw - predicted) ** 2
    between = jnp.sum(weight * (squared - variance)) / jnp.sum(weight)
    between = jnp.maximum(between, 10 * LEAST)
    center = predicted + between / (between + variance) * (raw - predicted)
    return Means(precision, total, jnp.clip(center, -2.0, 2.0))


def _by_popularity(
    raw: Float[Array, " items"], count: Float[Array, " items"], weight: Float[Array, " items"]
) -> Float[Array, " items"]:
    """A quadratic in the log of popularity, by weighted least squares."""
    z = jnp.log(count)
    z = z - jnp.sum(weight * z) / jnp.sum(weight)
    design = jnp.stack([jnp.ones_like(z), z, z**2], axis=1)
    weighted = design * weight[:, None]
    factor = jnp.linalg.cholesky(weighted.T @ design + 1e-3 * jnp.eye(3))
    return design @ jax.scipy.linalg.cho_solve((factor, True), weighted.T @ raw)


def mean_and_popularity(
    center: Float[Array, " items"], count: Float[Array, " items"]
) -> Float[Array, "items 2"]:
    """An item's mean, and the log of its popularity less what its mean says of it.

    Both are 0 on average over ratings, and 1 in squares; 0 where all items are alike. Users' slopes
    for them are two of the global effects of Bell and Koren (2007), `data.lifelike` has the title.
    """
    share = count / jnp.sum(count)

    def standard(column: jax.Array) -> jax.Array:
        column = column - jnp.sum(share * column)
        squared = jnp.sum(share * column**2)
        standard = column / jnp.sqrt(jnp.maximum(squared, LEAST))
        return jnp.where(squared > LEAST**2, standard, 0.0)  # not what sums round

    mean = standard(center)
    popular = standard(jnp.log(count))
    popular = standard(popular - jnp.sum(share * mean * popular) * mean)
    return jnp.stack([mean, popular], axis=1)


def first_factors(
    key: jax.Array,
    center: Float[Array, " items"],
    count: Float[Array, " items"],
    rank: int,
    num_learned: Array,
) -> Float[Array, "items d"]:
    """Where the passes start: columns of what is public already, the others random.

    The first that is learned is the item's mean, the second its popularity, since users differ in
    what they make of good and of popular items. The last `num_learned` columns are; those before
    them are 0.
    """
    random = jax.random.normal(key, (len(center), rank), jnp.float32)
    columns = mean_and_popularity(center, count)[:, :rank]
    drawn = jnp.roll(random.at[:, : columns.shape[1]].set(columns), rank - num_learned, axis=1)
    return jnp.where(_learned(rank, num_learned), 0.3 * drawn, 0.0)


def _learned(rank: int, num_learned: Array) -> Bool[Array, " d"]:
    """Which columns are."""
    return jnp.arange(rank) >= rank - num_learned


def factors(
    before: tuple[Float[Array, "items d"], Float[Array, "items d"]],
    is_first: Array,
    sums: Float[Array, "items d"],
    gram: Float[Array, "d d"],
    count: Float[Array, " items"],
    num_users: int | Float[Array, ""],
    deviation: Float[Array, ""],
    settings: tuple[jax.Array, ...],
    num_learned: Array,
    *,
    non_negative: bool = False,
) -> tuple[Float[Array, "items d"], Float[Array, "items d"]]:
    """(item factors, their variances) after one more pass.

    An item's sum is Σ s·w·e·u ≈ n·M·Δv, n its count and M the mean of s·u·uᵀ. Along an eigenvector
    of M it is one number of known variance. It is weighed against the factors of the pass before
    where there was one, with what moved since estimated by moments, else against 0. What a user's
    answer owes to the very rating it is compared with is taken out of the sums (`_agreed`).

    Args:
      before: factors and variances that the users answered to. is_first: whether they are only a
        start. sums, gram: noisy; gram is Σ over users of s·u·uᵀ.
      settings: (s², λ_u, signal, evenness).
      num_learned: how many columns are learned, the last ones; the others are 0, and stay.
      non_negative: whether factors below 0 become 0. They keep their own columns then, which a
        rotation would mix.
    """
    noise_variance, regularization, signal, evenness = settings
    rank = len(gram)
    learned = _learned(rank, num_learned)
    mean_gram = jnp.nan_to_num((gram + gram.T) / 2 / num_users)
    mean_gram = jnp.where(learned[:, None] & learned, mean_gram, 0.0)
    # columns that are not learned have their own axes, and these come first
    strength, axes = jnp.linalg.eigh(
        jnp.where(learned | ~jnp.eye(rank, dtype=bool), mean_gram, LAST)
    )
    strength = jnp.maximum(strength, LEAST)
    seen = count[:, None] * strength
    given = before[0] @ axes
    agreed = _agreed(before, mean_gram, count, num_users, noise_variance, regularization)
    said = given + (sums - agreed) @ axes / seen
    from_users = (
        noise_variance
        * mean_weight(count, num_users)
        * jnp.clip(
            jnp.sum(jnp.where(learned, strength, 0.0))
            * regularization
            / jnp.maximum(num_learned.astype(jnp.float32), 1.0),
            0.05,
            1.0,
        )
    )
    variance = (deviation**2 + from_users * seen) / seen**2
    old, old_variance = (jnp.where(is_first, 0.0, part) for part in (given, before[1] @ axes**2))
    weight = 1 / (variance + old_variance + NEAR) ** 2
    moved = (said - old) ** 2 - variance - old_variance
    between = jnp.sum(weight * moved, axis=0) / jnp.sum(weight, axis=0)
    prior = old_variance + jnp.maximum(between, jnp.where(is_first, LEAST, 0.0))
    kept = prior / (prior + variance)
    found = jnp.where(learned, old + kept * (said - old), 0.0)
    left = jnp.where(learned, (1 - kept) * prior, 0.0)
    if non_negative:
        factors = jnp.maximum(found @ axes.T, 0.0)
        return _columns_on_scale(
            factors, left @ (axes.T) ** 2, count, signal * regularization, evenness
        )
    return _on_scale(found @ axes.T, axes, left, count, signal * regularization, evenness, learned)


def _agreed(
    before: tuple[Float[Array, "items d"], Float[Array, "items d"]],
    mean_gram: Float[Array, "d d"],
    count: Float[Array, " items"],
    num_users: int | jax.Array,
    noise_variance: jax.Array,
    regularization: jax.Array,
) -> Float[Array, "items d"]:
    """What the sums hold because users' factors were fitted to the same ratings: n·P·v.

    A user's answer follows each of her ratings, its error included, by P·v/s², with P the posterior
    covariance of her factors: E[e·u] = P·v, even where v is right. Without this correction an item
    keeps a share of its own errors, and its random start, from pass to pass. P is that of a user
    with a typical number of ratings, 1/w²: s²·(m·C + s²·λ_u)⁻¹, where C is the mean of v·vᵀ and its
    variance over ratings. The mean scale of messages is that of M over E[u·uᵀ] = 1/λ_u - P.
    """
    factors, variance = before
    share = count / jnp.sum(count)
    unit = jnp.eye(factors.shape[1])
    lengths, axes = jnp.linalg.eigh(
        (factors * share[:, None]).T @ factors + unit * (share @ variance)
    )
    weight = mean_weight(count, num_users)
    typical = 1 / (weight * weight)
    ridge = noise_variance * regularization
    covariance = noise_variance / (typical * jnp.maximum(lengths, 0.0) + ridge)
    learned = jnp.sum(1 / regularization - covariance)
    scale = jnp.sum(unit * mean_gram)
    scale = scale / jnp.maximum(learned, 0.05 * factors.shape[1] / regularization)
    return count[:, None] * (factors @ ((axes * (scale * covariance)) @ axes.T))


def _on_scale(
    factors: jax.Array,
    axes: jax.Array,
    variance: jax.Array,
    count: jax.Array,
    total: jax.Array,
    evenness: jax.Array,
    learned: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The same model with factors along their own axes, and as large as the users' prior expects.

    Axes come in the order of their length, so columns of zeros stay the first ones.

    Without it a pass shrinks users and stretches items, until the noise in M is all there is.
    """
    share = count / jnp.sum(count)
    strength, own = jnp.linalg.eigh((factors * share[:, None]).T @ factors)
    strength = jnp.maximum(strength, 1e-12)
    wanted = jnp.where(learned, (strength / jnp.sum(strength)) ** (1 - evenness), 0.0)
    wanted = wanted / jnp.maximum(jnp.sum(wanted), LEAST)
    stretch = own * jnp.sqrt(total * wanted / strength)
    return factors @ stretch, variance @ (axes.T @ stretch) ** 2


def _columns_on_scale(
    factors: jax.Array,
    variance: jax.Array,
    count: jax.Array,
    total: jax.Array,
    evenness: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """As `_on_scale`, column by column: each is stretched, and none is mixed with another.

    A column that is 0 everywhere stays as it is.
    """
    share = count / jnp.sum(count)
    squared = jnp.sum(factors**2 * share[:, None], axis=0)
    strength = jnp.maximum(squared, 1e-12)
    wanted = (strength / jnp.sum(strength)) ** (1 - evenness)
    stretch = jnp.sqrt(total * wanted / jnp.sum(wanted) / strength)
    stretch = jnp.where(squared > 1e-12, stretch, 1.0)
    return factors * stretch, variance * stretch**2
