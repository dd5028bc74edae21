"""A count sketch of vectors: a table float32[depth, width] that all users and items share.

Paper 002, 2.3 and 3.2.

Component l of the vector of an id is kept with a sign in one cell of each row (Charikar, Chen and
Farach-Colton, ICALP 2002). Nobody is registered: an id never seen before is queried and updated
like any other, and the table and 12·depth words are all that is kept. Sketches add up: the sum of
two tables is the sketch of what both hold. Depth 1 is feature hashing. No guarantee of privacy
follows from any of this.

Over the draw of the hashes the mean query of a coordinate is unbiased with variance
σ²/(width·depth), σ² the sum of squares of all *other* coordinates' values; it is the net values
that count, so updates of one coordinate add up before they are squared (2.3 leaves that open).

A query right after an update differs by the update, mean or median, if no two of the updated
coordinates share a cell in any row, and so always for a single coordinate. Otherwise the mean
differs by ±1/depth of the other's change more for each shared cell, and the median by nothing that
can be said in general.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jax.typing import ArrayLike

from accounting import guards
from dpmf_jax.devices import spread
from dpmf_jax.protocol import Factors, Release

USERS, ITEMS = 0, 1
BITS = 31
PRIME = 2**BITS - 1  # Mersenne: residues need no division, and two of them have room in a uint32
MOST_CELLS = 2**31 - 1  # of a table, whose cells are numbered in int32
BLOCK = 4096  # ids that are queried together where all are
MOST_COMPONENTS = 2**15  # of a vector: products with a component's index have room in a uint32


class Hashes(NamedTuple):
    """The hash functions of a sketch.

    words: uint32[2 families, 2 (address, sign), depth, 3] in [0, p), p = 2³¹ - 1: a₁, a₂, b of one
      function each.

    h(id, l) = ((a₁ + a₂·l)·(id + 1) + b) mod p for ids in [0, p - 1) and components in [0, p). It
    is uniform, and independent for two different (id, l), whose (id + 1, l·(id + 1)) differ (Carter
    and Wegman 1979). In a sum a₁·id + a₂·l + b two ids that meet in a cell would meet in all
    components.

    The address is ⌊h·width/p⌋, the sign the lowest bit of another function's value: each address
    has probability 1/width and each sign ½, within 1/p. Functions are independent of each other, so
    addresses are of signs, rows of rows, users of items.
    """

    words: jax.Array


def hashes(key: jax.Array, depth: int) -> Hashes:
    """The functions of a sketch with `depth` rows. Spends `key`.

    They are public, and to be kept with the table. words[family, kind, row, place] is the first
    word of Threefry-2x32 (20 rounds) under the first two words of the key's data at the counter
    (row, 6·family + 3·kind + place), less its lowest bit; 2³¹ - 1 becomes 0. Whole numbers only:
    the same for every machine, flag and version of jax. Each word is uniform within 2⁻³¹.

    Raises: ValueError for a depth below 1.
    """
    _check_counts(depth=depth)
    rows, places = jnp.indices((depth, 12), jnp.uint32).reshape(2, -1)
    drawn = threefry_2x32(jax.random.key_data(key)[:2], jnp.concatenate([rows, places]))[
        : depth * 12
    ] >> (32 - BITS)
    return Hashes(jnp.where(drawn == PRIME, 0, drawn).reshape(depth, 2, 2, 3).transpose(1, 2, 0, 3))


def width(num_users: int, num_items: int, rank: int, *, depth: int, gain: float) -> int:
    """w = ⌈(users + items)·rank/(gain·depth)⌉ (20): the cells of a row.

    The gain γ is the space gain over storing all vectors.

    A gain stands for the shortest decimal that names it. The paper has γ ≥ 1; a smaller one makes a
    larger table.

    Raises: ValueError for a number below 1 (a gain: that is not positive and finite), a table of
      2³¹ cells and more.
    """
    _check_counts(num_users=num_users, num_items=num_items, rank=rank, depth=depth)
    guards.positive("gain", gain)
    cells_of_row = math.ceil((num_users + num_items) * rank / (Fraction(str(gain)) * depth))
    _check_sizes(rank, depth, cells_of_row)
    return cells_of_row


def gain(num_users: int, num_items: int, rank: int, *, depth: int, width: int) -> float:
    """γ = (users + items)·rank/(width·depth) (17): the space gain of a table.

    The table is so many times smaller than all vectors.

    Raises: ValueError for a number below 1.
    """
    _check_counts(num_users=num_users, num_items=num_items, rank=rank, depth=depth, width=width)
    return (num_users + num_items) * rank / (width * depth)


def random_table(key: jax.Array, depth: int, width: int, scale: ArrayLike) -> jax.Array:
    """float32[depth, width] of independent normals. Spends `key`.

    The mean query of a coordinate then has standard deviation `scale`. The median's is larger from
    depth 3 on, by a factor 1.09 at depth 4.
    """
    _check_counts(depth=depth, width=width)
    return (
        jnp.asarray(scale, jnp.float32)
        * depth**0.5
        * jax.random.normal(key, (depth, width), jnp.float32)
    )


def cells(
    hashes: Hashes, family: ArrayLike, ids: ArrayLike, *, rank: int, width: int
) -> tuple[jax.Array, jax.Array]:
    """Where the vectors of ids are kept: (addresses within a row, signs), [..., depth, rank] both.

    Args:
      family: USERS or ITEMS.
      ids: int32 or uint32[...], in [0, 2³¹ - 2). Others count as their remainder by 2³¹ - 1 (as
        uint32), of which 2³¹ - 2 is no id: all of its components share their cells.

    Returns: int32 addresses, and float32 signs, ±1.

    Raises: ValueError for a width outside 1 ≤ width ≤ 2³¹ - 1, or a rank above 2¹⁵.
    """
    _check_sizes(rank, 1, width)
    words = hashes.words[jnp.asarray(family)]
    ids = jnp.asarray(ids).astype(jnp.uint32)[..., None]
    addresses = _address(_values(words[0], ids, rank, BITS), width, BITS)
    return addresses, _sign(_values(words[1], ids, rank, BITS))


def packed_cells(
    hashes: Hashes, users: jax.Array, items: jax.Array, *, rank: int, width: int
) -> jax.Array:
    """`cells` of n ratings' users and items, one word each: uint32[2 families, depth, rank, n].

    A word is twice the place in the flat table, plus 1 for the sign -1. Ratings lie on the last
    axis, side by side: n updates one after the other, which read a column each, share the
    arithmetic.

    Raises: as `cells`; ValueError for a table of 2³¹ cells and more.
    """
    depth = hashes.words.shape[2]
    _check_sizes(rank, depth, width)
    ids = jnp.stack([users, items]).astype(jnp.uint32)[:, None, :]
    addresses, signs = (
        _values(hashes.words[:, kind, :, None], ids, rank, BITS, axis=-2) for kind in (0, 1)
    )
    places = _address(addresses, width, BITS).astype(jnp.uint32)
    places += (jnp.arange(depth, dtype=jnp.uint32) * jnp.uint32(width))[:, None, None]
    return places << 1 | (signs & 1)


def query(
    table: jax.Array,
    hashes: Hashes,
    family: ArrayLike,
    ids: ArrayLike,
    *,
    rank: int,
    how: Literal["mean", "median"] = "mean",
) -> jax.Array:
    """The vectors of ids, float32[..., rank]: the mean (13), (14) or the median of sign times cell.

    The mean and the median are over rows. The median of an even number of rows is the mean of the
    middle two.

    Raises: ValueError for another `how`, a table that does not have the hashes' depth, one of 2³¹
      cells and more.
    """
    places, signs = _cells_of_table(table, hashes, family, ids, rank)
    each = table.reshape(-1).at[places].get(mode="promise_in_bounds") * signs
    if how == "mean":
        return each.sum(-2) / each.shape[-2]
    if how == "median":
        return _median(each)
    raise ValueError(f'how must be "mean" or "median"; got {how!r}')


@partial(jax.jit, static_argnames=("num", "rank", "how"))
def vectors(
    table: jax.Array,
    hashes: Hashes,
    family: ArrayLike,
    num: int,
    *,
    rank: int,
    how: Literal["mean", "median"] = "mean",
) -> jax.Array:
    """The vectors of ids 0 to num - 1, float32[num, rank].

    By `query` in blocks, whose cells take little memory.
    """
    ids = jnp.arange(num, dtype=jnp.int32)
    return jax.lax.map(
        lambda at: query(table, hashes, family, at, rank=rank, how=how),
        ids,
        batch_size=spread.block(BLOCK),
    )


def factors(release: Release, num_users: int, num_items: int) -> Factors:
    """The bilinear model of a released sketch, on the host.

    It has the sketch's vectors, and released factors as further columns.

    Raises: ValueError for a release without sketch, hashes or rank.
    """
    if release.sketch is None or release.hashes is None or release.rank is None:
        raise ValueError("release must hold sketch, hashes and rank")
    parts = []
    for family, num, more in (
        (USERS, num_users, release.user_factors),
        (ITEMS, num_items, release.item_factors),
    ):
        how = "median" if release.median is not None and bool(release.median) else "mean"
        words = Hashes(jnp.asarray(release.hashes))
        found = vectors(
            jnp.asarray(release.sketch), words, family, num, rank=int(release.rank), how=how
        )
        parts.append(np.asarray(found) if more is None else np.concatenate([found, more], axis=1))
    return Factors(*parts, release.center)


def update(
    table: jax.Array, hashes: Hashes, family: ArrayLike, ids: ArrayLike, change: ArrayLike
) -> jax.Array:
    """The table after `change`, float32[..., rank], is added to the vectors of ids (6).

    It is linear in table and change. An id may occur more than once, and cells may be shared: all
    changes are added, in the order of ids on a CPU. In another order (as on a GPU) results agree
    within rounding, as float32 addition does; they are exact where sums are, as for whole numbers.

    Raises: ValueError for a table that does not have the hashes' depth, one of 2³¹ cells and more.
    """
    change = jnp.asarray(change)
    places, signs = _cells_of_table(table, hashes, family, ids, change.shape[-1])
    added = table.reshape(-1).at[places].add(signs * change[..., None, :], mode="promise_in_bounds")
    return added.reshape(table.shape)


def _cells_of_table(
    table: jax.Array, hashes: Hashes, family: ArrayLike, ids: ArrayLike, rank: int
) -> tuple[jax.Array, jax.Array]:
    """(places in the flat table, signs), both [..., depth, rank].

    A flat table is read faster than one of two axes.
    """
    depth, width = table.shape
    if depth != hashes.words.shape[2]:
        raise ValueError(
            f"table must have as many rows as there are hashes, {hashes.words.shape[2]}; got"
            f" {depth}"
        )
    _check_sizes(rank, depth, width)
    addresses, signs = cells(hashes, family, ids, rank=rank, width=width)
    return addresses + (jnp.arange(depth, dtype=jnp.int32) * width)[:, None], signs


def _median(each: jax.Array) -> jax.Array:
    """The median over the last axis but one, by a network of exchanges.

    On a CPU a sort along an axis is slower. The exchanges stand in a loop, because it then reads an
    array that is there: XLA:CPU fuses slices of a gather with the gather and with the hashes before
    it, however many barriers are put in between, into one loop several times slower.
    """
    depth = each.shape[-2]
    if depth < 3:
        return each.sum(-2) / depth

    def exchange(_: ArrayLike, rows: list[jax.Array]) -> list[jax.Array]:
        rows = list(rows)
        for low in (*range(0, depth - 1, 2), *range(1, depth - 1, 2)):
            rows[low], rows[low + 1] = (
                jnp.minimum(rows[low], rows[low + 1]),
                jnp.maximum(rows[low], rows[low + 1]),
            )
        return rows

    rows = jax.lax.fori_loop(
        0, -(-depth // 2), exchange, [each[..., row, :] for row in range(depth)]
    )
    return (rows[(depth - 1) // 2] + rows[depth // 2]) / 2


# Arithmetic modulo the Mersenne prime p = 2^bits - 1 in uint32; `bits` only so that a small prime
# can be run through.


def _values(words: jax.Array, ids: jax.Array, rank: int, bits: int, axis: int = -1) -> jax.Array:
    """h(id, l), uint32, with an axis of l put in.

    words[..., 3] but for their last axis, and ids, are broadcast.
    """
    ids = _reduced(_reduced((ids & jnp.uint32(2**bits - 1)) + (ids >> bits), bits) + 1, bits)
    start = _reduced(_product(words[..., 0], ids, bits) + words[..., 2], bits)
    step = _product(words[..., 1], ids, bits)
    # or each component repeats both products
    start, step = jax.lax.optimization_barrier((start, step))
    component = jnp.expand_dims(jnp.arange(rank, dtype=jnp.uint32), tuple(range(axis + 1, 0)))
    return _reduced(
        jnp.expand_dims(start, axis) + _multiple(jnp.expand_dims(step, axis), component, bits), bits
    )


def _multiple(x: jax.Array, times: jax.Array, bits: int) -> jax.Array:
    """x·times mod p for x < p and times below `MOST_COMPONENTS`.

    It takes two products in place of five.
    """
    low = bits // 2 + 1
    high = (x >> low) * times  # below 2^30: times 2^low is a rotation of its bits
    rest = (x & (2**low - 1)) * times
    high = _reduced((high >> (bits - low)) + ((high & (2 ** (bits - low) - 1)) << low), bits)
    return _reduced(high + _reduced((rest >> bits) + (rest & (2**bits - 1)), bits), bits)


def _address(values: jax.Array, width: int, bits: int) -> jax.Array:
    """⌊h·width/p⌋, int32, exactly, for h < p and width ≤ p.

    h·width = q·2^bits + r = q·p + (q + r), and q + r < 2p.
    """
    quotient, rest = _split(values, jnp.uint32(width), bits)
    return (quotient + (quotient + rest >= 2**bits - 1)).astype(jnp.int32)


def _sign(values: jax.Array) -> jax.Array:
    return 1 - 2 * (values & 1).astype(jnp.float32)


def _reduced(x: jax.Array, bits: int) -> jax.Array:
    """x mod p for x < 2p: where x < p, x - p has wrapped around and is the larger of the two."""
    return jnp.minimum(x, x - jnp.uint32(2**bits - 1))


def _product(x: jax.Array, y: jax.Array, bits: int) -> jax.Array:
    """x·y mod p for x, y < p."""
    quotient, rest = _split(x, y, bits)
    return _reduced(quotient + rest, bits)


def _split(x: jax.Array, y: jax.Array, bits: int) -> tuple[jax.Array, jax.Array]:
    """(⌊x·y/2^bits⌋, x·y mod 2^bits) for x < 2^bits.

    The first is the upper word of 2^(32 - bits)·x times y, by limbs of 16 bits.
    """
    lower = x * y & jnp.uint32(2**bits - 1)
    x = x << (32 - bits)
    x_high, x_low, y_high, y_low = x >> 16, x & 0xFFFF, y >> 16, y & 0xFFFF
    middle = x_high * y_low + (x_low * y_low >> 16)
    other = x_low * y_high + (middle & 0xFFFF)
    return x_high * y_high + (middle >> 16) + (other >> 16), lower


def _check_counts(**numbers: int) -> None:
    for name, value in numbers.items():
        guards.count(name, value)


def _check_sizes(rank: int, depth: int, width: int) -> None:
    if not 1 <= width <= PRIME:
        raise ValueError(f"width must be from 1 to {PRIME}; got {width}")
    if depth * width > MOST_CELLS:
        raise ValueError(
            f"a table must have at most {MOST_CELLS} cells; got {depth} rows of {width}"
        )
    if not 0 <= rank <= MOST_COMPONENTS:
        raise ValueError(f"rank must be at most {MOST_COMPONENTS}; got {rank}")
