"""The data sets whose sizes the benchmarks take, with generated ratings in place of real ones."""

from __future__ import annotations

from dpmf_jax.data import synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError

# Name: users, items, ratings.
SIZES = {
    "ml-100k": (943, 1_682, 100_000),
    "ml-1m": (6_040, 3_706, 1_000_209),
    "ml-20m": (138_493, 26_744, 20_000_263),
}


def check(size: str, rank: int, repeats: int) -> None:
    """Raises: UsageError for an unknown size, a rank or number of repeats below 1."""
    if size not in SIZES:
        raise UsageError(f"unknown size {size!r}", where="--size", fix=f"one of {', '.join(SIZES)}")
    if min(rank, repeats) < 1:
        raise UsageError(
            "rank and repeats must be at least 1", where=f"rank {rank}, repeats {repeats}"
        )


def ratings(size: str | tuple[int, int, int]) -> Ratings:
    """Generated ratings of a data set's size, or of so many users, items and ratings."""
    users, items, number = SIZES[size] if isinstance(size, str) else size
    return synthetic.generate(num_users=users, num_items=items, num_ratings=number)


def describe(size: str | tuple[int, int, int]) -> str:
    """Such as "generated, 100,000 ratings, 943 x 1,682"."""
    users, items, number = SIZES[size] if isinstance(size, str) else size
    return f"generated, {number:,} ratings, {users:,} x {items:,}"
