"""One user's device in paper 004: from the own ratings to the one message that leaves it.

Everything here is written for one user. What goes in besides the own ratings and factors is public;
what comes out and is sent is a `Message`, and the server (`server.update`) takes nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from dpmf_jax.kernels import projection
from dpmf_jax.noise import bits
from dpmf_jax.noise.laws import Noise, Report


class Coordinate(NamedTuple):
    """Which entry a report is about.

    row: int32, an item, or a row of Φ.
    column: int32, of the rank.
    """

    row: jax.Array
    column: jax.Array


class Message(NamedTuple):
    """All that a device sends; leading axis of users where there are many.

    coordinate: of the entry, drawn without looking at ratings.
    bit: float32, -1 or 1; 0 where it is not the user's round, which is public.
    """

    coordinate: Coordinate
    bit: jax.Array


class Ratings(NamedTuple):
    """One user's ratings.

    item: int32[n].
    value: float32[n].
    present: float32[n], 0 where the place is padding.
    """

    item: jax.Array
    value: jax.Array
    present: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What the server announces; public.

    item_factors: float32[items, rank], V.
    center: subtracted from ratings.
    clip: c.
    words: of Φ; None without one.
    law: of the entries of Φ.
    num_projected: rows of Φ; None without one.
    """

    item_factors: jax.Array
    center: jax.Array
    clip: jax.Array
    words: bits.Words | None
    law: projection.Law = dataclasses.field(metadata={"static": True})
    num_projected: int | None = dataclasses.field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """Of what a coordinate is drawn from: the items, or the rows of Φ."""
        return self.item_factors.shape[0] if self.num_projected is None else self.num_projected

    @property
    def phi(self) -> Partial | None:
        """(row, columns) -> entries of Φ; None without one."""
        return (
            None if self.words is None else Partial(_phi, self.law, self.num_projected, self.words)
        )


def _phi(
    law: projection.Law, num_projected: int, words: bits.Words, row: Any, columns: Any
) -> jax.Array:
    return projection.entries(words, law, row, columns, num_projected)


class Own(NamedTuple):
    """What one device holds and was asked.

    factors: float32[rank], its own.
    factor: factors[column].
    row: of the entry.
    """

    factors: jax.Array
    factor: jax.Array
    row: jax.Array


class Known(NamedTuple):
    """Of one item, public: its factors, its index."""

    factors: jax.Array
    index: Any


class Sums(NamedTuple):
    """What is made of one user's own ratings.

    gradient: float32[rank], -2 Σ e_j·v_j.
    entry: float32[], at the place asked of Φ·∇V, or of ∇V.
    squared: float32[], Σ e².
    """

    gradient: jax.Array
    entry: jax.Array
    squared: jax.Array


def sums(
    center: jax.Array,
    phi: Partial | None,
    own: Own,
    known: Known,
    values: jax.Array,
    present: jax.Array,
) -> Sums:
    """∇V of one user has the rows -2·e_j·u at the rated items. Private: they stay on the device."""
    residual = present * (values - center - known.factors @ own.factors)
    weight = (
        (known.index == own.row).astype(jnp.float32) if phi is None else phi(own.row, known.index)
    )
    entry = -2 * own.factor * (weight @ residual)
    return Sums(-2 * residual @ known.factors, entry, residual @ residual)


def report(coordinate: Coordinate, entry: jax.Array, clip: jax.Array, sent: jax.Array) -> Report:
    """The report that is about to be randomised: the entry over c, clipped to [-1, 1].

    It is 0 where nothing is sent.
    """
    value = jnp.clip(entry / clip, -1.0, 1.0)
    return Report(coordinate.row, coordinate.column, jnp.where(sent, value, 0.0), sent)


def message(said: Report) -> Message:
    """What is sent of a randomised report."""
    return Message(Coordinate(said.row, said.column), said.value)


def speak(
    announced: Round,
    randomiser: Noise,
    key: jax.Array,
    ratings: Ratings,
    user_factors: jax.Array,
    sent: jax.Array,
) -> Message:
    """One user's message in one round: one randomised bit about an entry of the own gradient.

    The place of the entry is drawn first.

    Guarantee: that of the randomiser, for any change to all of this user's ratings, and to which
      items they are of; for `noise.one_bit(ε)` ε-differential privacy, pure (paper 004, lemma 1).
      The place is drawn from `key` alone.

    Args:
      key: the device's own, of this round. Spent.
      user_factors: float32[rank], the user's own. sent: bool, whether it is the user's round.
    """
    row_key, column_key, noise_key = jax.random.split(key, 3)
    rank = announced.item_factors.shape[1]
    row = bits.places(bits.public_words(row_key), 1, announced.num_rows)[0]
    column = bits.places(bits.public_words(column_key), 1, rank)[0]
    own = Own(user_factors, user_factors[column], row)
    known = Known(announced.item_factors[ratings.item], ratings.item)
    entry = sums(announced.center, announced.phi, own, known, ratings.value, ratings.present).entry
    asked = report(Coordinate(row, column), entry, announced.clip, sent)
    return message(randomiser.sample(noise_key, asked))
