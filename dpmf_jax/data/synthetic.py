"""Generated ratings, seeded: long-tailed users and items, planted low rank plus noise.

The default data of the demo.
"""

import itertools

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError

CHUNK = 1 << 20  # ratings whose values are made at once


def generate(
    *,
    num_users: int = 943,
    num_items: int = 1682,
    num_ratings: int = 100_000,
    rank: int = 8,
    seed: int = 0,
    rating_range: tuple[float, float] = (1.0, 5.0),
    rating_step: float = 1.0,
) -> Ratings:
    """Generated ratings, by default of MovieLens-100K's size and difficulty; ids count from 1.

    Who rates what: users' activity is log-normal; their items are drawn without replacement,
    long-tailed. What they say on a scale of 1 to 5: 3.45 + user + item + <factors> + noise, with
    standard deviations of 0.45, 0.5, 0.5 and 0.85, stretched to `rating_range`, rounded to
    `rating_step` and clipped; popular items are liked a little better. Rows are in order of user
    and item. The name and a note say that the ratings are generated ("synthetic").

    Raises: UsageError for fewer than two users or items, more than half of all (user, item) pairs,
      or a bad range.
    """
    check(num_users, num_items, num_ratings, rank, rating_range, rating_step)
    structure, pairs, noise = (
        np.random.default_rng(entropy) for entropy in np.random.SeedSequence(seed).spawn(3)
    )
    popularity = _popularity(structure, num_items)
    activity = _activity(structure, num_users, num_items, num_ratings)
    user, item = _who_rates_what(pairs, activity, popularity)

    quality = 0.49 * structure.standard_normal(num_items) + 0.12 * _standardised(np.log(popularity))
    mood = 0.45 * structure.standard_normal(num_users)
    scale = 0.5**0.5 / rank**0.25
    taste = (scale * structure.standard_normal((num_users, rank))).astype(np.float32)
    theme = (scale * structure.standard_normal((num_items, rank))).astype(np.float32)
    low, high = rating_range
    value = np.empty(num_ratings, np.float32)
    for start in range(0, num_ratings, CHUNK):
        who, what = user[start : start + CHUNK], item[start : start + CHUNK]
        opinion = 3.45 + mood[who] + quality[what] + np.einsum("nr,nr->n", taste[who], theme[what])
        opinion += 0.85 * noise.standard_normal(len(who))
        stretched = low + (opinion - 1.0) / 4.0 * (high - low)
        rounded = low + np.round((stretched - low) / rating_step) * rating_step
        value[start : start + CHUNK] = np.clip(rounded, low, high)
    return Ratings(
        user,
        item,
        value,
        np.arange(1, num_users + 1),
        np.arange(1, num_items + 1),
        (float(low), float(high)),
        f"synthetic-{num_users}x{num_items}x{num_ratings}-seed{seed}",
        ("generated, not real: no person is behind these ratings",),
    )


def _popularity(rng: np.random.Generator, num_items: int) -> np.ndarray:
    """Zipf-Mandelbrot weights of items.

    MovieLens-100K's most rated item has 0.6% of all ratings, its median item 0.03%.
    """
    rank = np.arange(num_items) / num_items
    weight = np.exp(-5.5 * rank) * (0.03 / (0.03 + rank)) ** 0.3
    return rng.permutation(weight / weight.sum())


def _activity(
    rng: np.random.Generator, num_users: int, num_items: int, num_ratings: int
) -> np.ndarray:
    """Ratings per user, long-tailed, summing to num_ratings.

    At most 45% of the items each, where that suffices.
    """
    most = min(num_items, max(int(0.45 * num_items), -(-3 * num_ratings // (2 * num_users))))
    weight = 0.2 + rng.lognormal(0.0, 0.95, num_users)
    low, high = 0.0, float(num_ratings * num_users)
    for _ in range(200):  # the scale at which the capped counts add up
        middle = (low + high) / 2
        total = np.minimum(weight * middle, most).sum()
        low, high = (middle, high) if total < num_ratings else (low, middle)
    exact = np.minimum(weight * low, most)
    counts = np.floor(exact).astype(np.int64)
    while (missing := num_ratings - int(counts.sum())) > 0:
        room = np.flatnonzero(counts < most)
        counts[room[np.argsort(counts[room] - exact[room], kind="stable")[:missing]]] += 1
    return counts


def _who_rates_what(
    rng: np.random.Generator, activity: np.ndarray, popularity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct (user, item) pairs in order, for blocks of users whose pairs are sorted in cache."""
    block = np.cumsum(activity) // CHUNK
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1), len(activity)]
    cumulative = np.cumsum(popularity)
    user, item = np.empty(activity.sum(), np.int32), np.empty(activity.sum(), np.int32)
    done = 0
    for first, last in itertools.pairwise(edges):
        pairs = _distinct(rng, activity[first:last], popularity, cumulative)
        rows = np.s_[done : done + len(pairs)]
        user[rows], item[rows] = first + pairs // len(popularity), pairs % len(popularity)
        done += len(pairs)
    return user, item


def _distinct(
    rng: np.random.Generator, activity: np.ndarray, popularity: np.ndarray, cumulative: np.ndarray
) -> np.ndarray:
    """Sorted user · items + item of distinct pairs.

    Draws are repeated for users who are short of items; who still is then is settled exactly.
    """
    num_items = len(popularity)
    drawn = np.zeros(0, np.int64)
    for _ in range(6):
        short = activity - np.bincount(drawn // num_items, minlength=len(activity))
        if not short.any():
            return drawn
        user = np.repeat(np.arange(len(activity)), short)
        item = np.searchsorted(cumulative, rng.random(len(user)) * cumulative[-1], side="right")
        drawn = np.concatenate([drawn, user * num_items + item])
        drawn.sort(kind="stable")  # timsort: users are in order already
        drawn = drawn[np.append(True, drawn[1:] != drawn[:-1])]
    short = activity - np.bincount(drawn // num_items, minlength=len(activity))
    ends = np.searchsorted(drawn, np.arange(len(activity) + 1) * num_items)
    extra = [drawn]
    for user in np.flatnonzero(short):
        race = rng.exponential(size=num_items) / popularity
        race[drawn[ends[user] : ends[user + 1]] - user * num_items] = np.inf
        extra.append(user * num_items + np.argpartition(race, short[user] - 1)[: short[user]])
    return np.sort(np.concatenate(extra), kind="stable")


def _standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / (values.std() or 1.0)


def check(num_users, num_items, num_ratings, rank, rating_range, rating_step) -> None:
    if num_users < 2 or num_items < 2 or rank < 1:
        raise UsageError(
            f"{num_users} users, {num_items} items, rank {rank}",
            fix="at least 2 users, 2 items, rank 1",
        )
    if not 1 <= num_ratings <= num_users * num_items // 2:
        fix = f"choose from 1 up to half of all pairs, {num_users * num_items // 2:,}"
        raise UsageError(
            f"{num_ratings:,} generated ratings of {num_users} users and {num_items} items", fix=fix
        )
    low, high = rating_range
    if not (
        np.isfinite(low) and np.isfinite(high) and low < high and 0 < rating_step <= high - low
    ):
        raise UsageError(
            f"range {rating_range}, step {rating_step}",
            fix="low < high, and a step between 0 and their difference",
        )
