"""Train and test: seeded splits of ratings that keep the catalogue, and the slice of paper 001."""

import dataclasses
import hashlib
from collections.abc import Iterator

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import DataError, UsageError


def random(ratings: Ratings, *, fraction: float, seed: int) -> tuple[Ratings, Ratings]:
    """Train and test: round(fraction · n) ratings drawn at random are the test.

    0 leaves the test empty. Both sides keep the rows' order, the catalogue and the range; the draw
    is recorded in the notes.

    Raises: UsageError unless 0 <= fraction < 1.
    """
    number = _count(fraction, len(ratings))
    test = np.zeros(len(ratings), bool)
    test[np.random.default_rng(seed).permutation(len(ratings))[:number]] = True
    return _cut(ratings, test, f"split by rating, test fraction {fraction:g}, seed {seed}")


def by_pair(ratings: Ratings, *, fraction: float, seed: int) -> tuple[Ratings, Ratings]:
    """Train and test by a hash of (seed, user id, item id), about `fraction` in the test.

    Whether a rating is held out depends on nothing but its own ids, so a rating more or less moves
    no other. The presence of a rating needs that, and `random` does not give it.

    Raises: UsageError unless 0 <= fraction < 1.
    """
    _count(fraction, len(ratings))
    user, item = (
        _id_hashes(ids, f"{side} {seed}")
        for ids, side in ((ratings.users, "user"), (ratings.items, "item"))
    )
    hashes = scrambled(user[ratings.user] ^ item[ratings.item])
    test = hashes < np.uint64(int(fraction * 2**64))
    return _cut(
        ratings, test, f"split by a hash of user and item, test fraction {fraction:g}, seed {seed}"
    )


def scrambled(words: np.ndarray) -> np.ndarray:
    """uint64, scrambled by the finaliser of SplitMix64."""
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(multiplier)
    return words ^ (words >> np.uint64(31))


def _id_hashes(ids: np.ndarray, salt: str) -> np.ndarray:
    """uint64[ids]: a hash of each id as text."""
    digests = (
        hashlib.blake2b(f"{salt} {entry}".encode(), digest_size=8).digest()
        for entry in ids.tolist()
    )
    return np.frombuffer(b"".join(digests), np.uint64)


def within_users(ratings: Ratings, *, fraction: float, seed: int) -> tuple[Ratings, Ratings]:
    """Train and test: of each user's m ratings, floor(fraction · m) at random are the test.

    So all users train.

    Raises: UsageError unless 0 <= fraction < 1.
    """
    _count(fraction, len(ratings))
    draw = np.random.default_rng(seed).random(len(ratings))
    order = np.lexsort((draw, ratings.user))
    counts = np.bincount(ratings.user, minlength=ratings.num_users)
    place = np.arange(len(ratings)) - np.repeat(np.cumsum(counts) - counts, counts)
    test = np.zeros(len(ratings), bool)
    test[order] = place < np.repeat((fraction * counts + 1e-9).astype(np.int64), counts)
    return _cut(ratings, test, f"split within each user, test fraction {fraction:g}, seed {seed}")


def whole_users(ratings: Ratings, *, fraction: float, seed: int) -> tuple[Ratings, Ratings]:
    """Train and test: all ratings of round(fraction · users) users drawn at random are the test.

    Raises: UsageError unless 0 <= fraction < 1.
    """
    held_out = np.zeros(ratings.num_users, bool)
    number = _count(fraction, ratings.num_users)
    held_out[np.random.default_rng(seed).permutation(ratings.num_users)[:number]] = True
    return _cut(
        ratings,
        held_out[ratings.user],
        f"split by whole users, test fraction {fraction:g}, seed {seed}",
    )


def folds(ratings: Ratings, *, k: int, seed: int) -> Iterator[tuple[Ratings, Ratings]]:
    """The (train, test) pairs of a cross-validation.

    Each rating is in exactly one test; sizes differ by at most one.

    Raises: UsageError unless 2 <= k <= n.
    """
    if not 2 <= k <= len(ratings):
        raise UsageError(
            f"{k} folds of {len(ratings):,} ratings",
            fix="choose from 2 up to the number of ratings",
        )
    fold = np.empty(len(ratings), np.int64)
    fold[np.random.default_rng(seed).permutation(len(ratings))] = np.arange(len(ratings)) % k
    return (
        _cut(ratings, fold == index, f"fold {index + 1} of {k}, seed {seed}") for index in range(k)
    )


def last(ratings: Ratings, *, number: int = 1) -> tuple[Ratings, Ratings]:
    """Train and test: the last `number` ratings of each user by time are the test.

    A user with no more than that keeps one for training. Of equal times the later row is the later
    one.

    Raises: UsageError for ratings without times, or a number below 1.
    """
    if ratings.time is None:
        raise UsageError(
            "nobody knows when these ratings were given",
            where=ratings.name,
            fix="name the column that says so, as --time-column or time_column",
        )
    if number < 1:
        raise UsageError(f"{number} ratings of each user are held out", fix="hold out 1 or more")
    order = np.lexsort((np.arange(len(ratings)), ratings.time, ratings.user))
    counts = np.bincount(ratings.user, minlength=ratings.num_users)
    place = np.arange(len(ratings)) - np.repeat(np.cumsum(counts) - counts, counts)
    test = np.zeros(len(ratings), bool)
    test[order] = place >= np.maximum(np.repeat(counts, counts) - number, 1)
    return _cut(ratings, test, f"split by time, the last {number} of each user")


def paper001_slice(ratings: Ratings) -> Ratings:
    """Paper 001's slice: users with 201 to 2,499 ratings, then items with more than 100, once.

    The catalogue shrinks to the users and items that are left. It now depends on who rated what,
    and no guarantee of this project covers that choice.

    Raises: DataError if fewer than two users or items are left.
    """
    per_user = np.bincount(ratings.user, minlength=ratings.num_users)
    users = (per_user > 200) & (per_user < 2500)
    rows = users[ratings.user]
    items = np.bincount(ratings.item[rows], minlength=ratings.num_items) > 100
    rows &= items[ratings.item]
    left = ratings.take(
        rows, "paper 001's slice: chosen by who rated what, which no guarantee covers"
    )
    users = np.bincount(left.user, minlength=ratings.num_users) > 0
    if users.sum() < 2 or items.sum() < 2:
        what = f"paper 001's slice leaves {users.sum()} users and {items.sum()} items"
        fix = "it needs users with 201 to 2,499 ratings, items with more than 100"
        raise DataError(what, where=ratings.name, fix=fix)
    return dataclasses.replace(
        left,
        user=(np.cumsum(users, dtype=np.int32) - 1)[left.user],
        item=(np.cumsum(items, dtype=np.int32) - 1)[left.item],
        users=ratings.users[users],
        items=ratings.items[items],
    )


def _cut(ratings: Ratings, test: np.ndarray, note: str) -> tuple[Ratings, Ratings]:
    return ratings.take(~test, f"{note}: train"), ratings.take(test, f"{note}: test")


def _count(fraction: float, size: int) -> int:
    if not 0 <= fraction < 1:
        raise UsageError(
            f"the test fraction is {fraction}", fix="choose from 0 (no test) up to, but not, 1"
        )
    return round(fraction * size)


def rare(ratings: Ratings, train: Ratings, fewer_than: int = 10) -> np.ndarray:
    """bool[ratings]: whether a rating's user or item has fewer training ratings than this.

    Both have one catalogue. Paper 002 drops such rows from validation and test:
    `test.take(~rare(test, train))`.
    """
    per_user = np.bincount(train.user, minlength=ratings.num_users)
    per_item = np.bincount(train.item, minlength=ratings.num_items)
    return (per_user[ratings.user] < fewer_than) | (per_item[ratings.item] < fewer_than)
