"""One epoch of online factorisation, one rating after the other: over factors or a count sketch.

Paper 002 (2), (3) with the sign that descends: both vectors of a rating move from their old values,
p ← p + η(e q − λp), q ← q + η(e p − λq), e = r − p·q. A rating with e² above the threshold is
skipped.

On a CPU a loop over single ratings is compiled into one function. Interpreted operation by
operation it takes more than ten times as long at rank 20 (Zen 5). XLA compiles it so for a call
with the attribute `xla_cpu_small_call` if it contains no scatter (see `_one_function`). Other
backends, and versions that do not know the attribute, give the same result, slowly: batches without
conflict (`ordered.schedule` with size > 1) are for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.typing import ArrayLike

from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.kernels import count_sketch
from dpmf_jax.layout import ordered

# floats: of the shortest loop that becomes vector instructions, and of one of these
SHORTEST, LANES = 24, 8
# ratings whose cells are hashed at once; rows of CHUNK + 1 words do not share cache sets
CHUNK = 240


class Seen(NamedTuple):
    """What an epoch sees on its way.

    squared: Σe² over the ratings, each before its own update.
    learnt: how many ratings were not skipped.
    rated: how many ratings there are.
    """

    squared: jax.Array
    learnt: jax.Array
    rated: jax.Array


class Rule(NamedTuple):
    """One update.

    learning_rate: η.
    regularization: λ.
    threshold: the largest e² that is learnt from: ε by 4.3, 2ε by 3.2 (e²/2 of at most ε); ∞: all.
    """

    learning_rate: ArrayLike
    regularization: ArrayLike
    threshold: ArrayLike = float("inf")


def dense(
    users: jax.Array,
    items: jax.Array,
    schedule: ordered.Schedule,
    data: layout.Layout,
    rule: Rule,
    offset: ArrayLike = 0.0,
) -> tuple[jax.Array, jax.Array, Seen]:
    """One epoch over factors, in the schedule's order: float32[users, rank], [items, rank], Seen.

    Batches of one rating run as a loop on a CPU. Larger ones run all at once: exact where
    `ordered.schedule` made them; else they are mini-batches, whose updates are summed.

    offset: subtracted from the values; one number, or of the shape of `schedule.user`.
    """
    value, rated = _values(schedule, data, offset)
    if schedule.user.shape[1] > 1:
        return _dense_batches(users, items, schedule, value, rated, rule)
    rank = users.shape[1]
    width = max(SHORTEST, (rank // LANES + 1) * LANES)  # never a row alone: see `_unfolded`
    places = jnp.concatenate(
        [jnp.asarray(part).astype(jnp.uint32) * width for part in (schedule.user, schedule.item)], 1
    )
    # the last: no rating's
    rows = (jnp.pad(table, ((0, 1), (0, width - rank))).reshape(-1) for table in (users, items))
    loop = _one_function(partial(_dense_loop, rank=rank, width=width))
    *rows, squared, learnt = loop(*rows, places, value.reshape(-1), jnp.stack(_floats(rule)))
    users, items = (moved.reshape(-1, width)[:-1, :rank] for moved in rows)
    return users, items, Seen(squared, learnt, rated)


def sketched(
    table: jax.Array,
    hashes: count_sketch.Hashes,
    schedule: ordered.Schedule,
    data: layout.Layout,
    rule: Rule,
    offset: ArrayLike = 0.0,
    *,
    rank: int,
) -> tuple[jax.Array, Seen]:
    """One epoch over a count sketch, table float32[depth, width], in the order of the schedule.

    Batches may have any size; 1 is best. Vectors are mean queries; the change of both goes into
    their cells, which may be shared (paper 002, 3.2). Hashes are computed on the way, `CHUNK`
    ratings at once; nothing of the size of users and items is kept.
    """
    depth, width = table.shape
    value, rated = _values(schedule, data, offset)
    missing = -value.size % CHUNK
    chunks = tuple(
        jnp.pad(part.reshape(-1), (0, missing), constant_values=filler).reshape(-1, CHUNK)
        for part, filler in ((schedule.user, 0), (schedule.item, 0), (value, jnp.nan))
    )
    loop = _one_function(partial(_sketch_loop, depth=depth, rank=rank))
    numbers = jnp.stack(_floats(rule))

    def chunk(carry, part):
        table, buffer = carry
        user, item, value = part
        cells = count_sketch.packed_cells(hashes, user, item, rank=rank, width=width)
        buffer = jax.lax.dynamic_update_slice(
            buffer, cells.reshape(2 * depth, rank, CHUNK), (0, 0, 0)
        )
        table, *seen = loop(table, buffer, value, numbers)
        return (table, buffer), seen

    # longer than a chunk: written in place, by one thread
    buffer = jnp.zeros((2 * depth, rank, CHUNK + 1), jnp.uint32)
    (table, _), seen = jax.lax.scan(chunk, (table.reshape(-1), buffer), chunks)
    return table.reshape(depth, width), Seen(*map(jnp.sum, seen), rated)


def sketched_batches(
    table: jax.Array,
    hashes: count_sketch.Hashes,
    schedule: ordered.Schedule,
    data: layout.Layout,
    rule: Rule,
    offset: ArrayLike = 0.0,
    *,
    rank: int,
    how: Literal["mean", "median"] = "mean",
) -> tuple[jax.Array, Seen]:
    """As `sketched`, but all of a batch from the same table; median queries if asked for.

    Changes of a batch are added up. With batches of one rating it is exact too, and slow.
    """

    def batch(table, part):
        user, item, value = part
        p, q = (
            count_sketch.query(table, hashes, family, ids, rank=rank, how=how)
            for family, ids in ((count_sketch.USERS, user), (count_sketch.ITEMS, item))
        )
        error = value - jnp.sum(p * q, 1)
        shrink, step, learn = _steps(rule, error[:, None])
        table = count_sketch.update(table, hashes, count_sketch.USERS, user, step * q - shrink * p)
        table = count_sketch.update(table, hashes, count_sketch.ITEMS, item, step * p - shrink * q)
        return table, (jnp.sum(_squared(value, error)), jnp.sum(learn, dtype=jnp.uint32))

    value, rated = _values(schedule, data, offset)
    table, seen = jax.lax.scan(
        batch, table, (jnp.asarray(schedule.user), jnp.asarray(schedule.item), value)
    )
    return table, Seen(*map(jnp.sum, seen), rated)


def _values(
    schedule: ordered.Schedule, data: layout.Layout, offset: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """(what is left to predict, how many ratings there are).

    It is NaN where there is no rating, which no threshold admits. All but the offset is the same in
    every epoch, and XLA moves it out of a loop over them.
    """
    stored, present = layout.stored_values(data)
    # one gather, not two
    value = jnp.where(present, stored, jnp.nan).reshape(-1).at[schedule.slot].get(mode="clip")
    value = jnp.where(schedule.used, value, jnp.nan)
    return value - offset, jnp.sum(value == value, dtype=jnp.uint32)


def _floats(rule: Rule) -> Rule:
    return Rule(*(jnp.asarray(number, jnp.float32) for number in rule))


def _steps(rule: Rule, error: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(shrink, step, learn): both vectors change by step · other - shrink · own.

    They change by 0 where nothing is learnt.
    """
    learn = error * error <= rule.threshold
    shrink = _where(learn, rule.learning_rate * rule.regularization)
    return shrink, _where(learn, rule.learning_rate * error), learn


def _squared(value: jax.Array, error: jax.Array) -> jax.Array:
    """e², and 0 where there is no rating.

    Not a number where an error is none, so that a divergence is seen.
    """
    return _where(value == value, error * error)


def _where(chosen: jax.Array, value: ArrayLike) -> jax.Array:
    """The value, or 0. `jnp.where` would be a call in a loop that is one function."""
    return jax.lax.select(
        chosen, jnp.broadcast_to(value, chosen.shape), jnp.zeros(chosen.shape, jnp.float32)
    )


def _dense_batches(users, items, schedule, value, rated, rule):
    """Batches of users and items in one table with an empty row at its end, for padding."""
    (num_users, rank), num_items, size = users.shape, items.shape[0], schedule.user.shape[1]
    last = num_users + num_items
    rows = (
        jnp.where(schedule.used, schedule.user, last),
        jnp.where(schedule.used, schedule.item + num_users, last),
    )
    table = jnp.concatenate([users, items, jnp.zeros((1, rank), users.dtype)])
    # as in layout.split: gathered in place, by one thread
    buffer = jnp.zeros((2 * size + 1, rank), users.dtype)

    def batch(carry, part):
        table, buffer = carry
        rows, value = part
        buffer = jax.lax.dynamic_update_slice(
            buffer, table.at[rows].get(mode="promise_in_bounds"), (0, 0)
        )
        both = buffer[:-1]
        error = value - jnp.sum(both[:size] * both[size:], 1)
        shrink, step, learn = _steps(rule, jnp.concatenate([error, error])[:, None])
        change = step * jnp.roll(both, size, 0) - shrink * both
        seen = jnp.sum(_squared(value, error)), jnp.sum(learn[:size], dtype=jnp.uint32)
        return (table.at[rows].add(change, mode="promise_in_bounds"), buffer), seen

    rows = jnp.concatenate(rows, 1).astype(jnp.uint32)
    (table, _), seen = jax.lax.scan(batch, (table, buffer), (rows, value))
    return table[:num_users], table[num_users:last], Seen(*map(jnp.sum, seen), rated)


def _dense_loop(users, items, places, value, rule, *, rank, width):
    """The loop over single ratings on flat tables of rows `width` long, whose end is zeros.

    places: uint32[ratings, 2], where rows begin.
    """
    rule, zero = Rule(*rule), jnp.uint32(0)

    def read(table, place, both, at):
        # A copy in a buffer: or XLA copies whole tables, for fear of writing what is still to be
        # read.
        row = _unfolded(jax.lax.dynamic_slice(table, (place,), (width,)), rank, times=5)
        return jax.lax.dynamic_update_slice(both, row[None], (at, zero))

    def write(table, place, row, change):
        return jax.lax.dynamic_update_slice(table, row + _unfolded(change, rank, times=3), (place,))

    def body(carry):
        turn, users, items, both, sums, squared, rest, learnt = carry
        user, item = jax.lax.dynamic_slice(places, (turn, zero), (1, 2))[0]
        both = read(users, user, both, turn * zero)
        both = read(items, item, both, turn * zero + jnp.uint32(1))
        # Eight sums of products side by side; those behind them are for a loop long enough to
        # become vectors.
        parts = [
            both[0, at : at + SHORTEST] * both[1, at : at + SHORTEST]
            for at in range(0, width, LANES)
        ]
        sums = jax.lax.dynamic_update_slice(sums, _tree(parts)[None], (turn * zero, zero))
        mine = jax.lax.dynamic_slice(value, (turn,), (1,))[0]
        error = mine - _tree(list(sums[0, :LANES]))
        shrink, step, learn = _steps(rule, error)
        p, q = both[0, :width], both[1, :width]
        users = write(users, user, p, step * q - shrink * p)
        items = write(items, item, q, step * p - shrink * q)
        added = _squared(mine, error) - rest  # Kahan: a plain float32 sum stands still beyond 2^24
        total = squared + added
        rest = (total - squared) - added
        return (
            turn + jnp.uint32(1),
            users,
            items,
            both,
            sums,
            total,
            rest,
            learnt + learn.astype(jnp.uint32),
        )

    nothing = jnp.zeros((), users.dtype)
    both = jnp.zeros((2, width + SHORTEST - LANES), users.dtype)
    # a row more than is used: else they are no buffer to XLA, but scalars
    sums = jnp.zeros((2, SHORTEST), users.dtype)
    start = (zero, users, items, both, sums, nothing, nothing, zero)
    done = jax.lax.while_loop(lambda carry: carry[0] < jnp.uint32(value.size), body, start)
    return done[1], done[2], done[5], done[7]


def _unfolded(row: jax.Array, rank: int, times: int) -> jax.Array:
    """The row, after operations that change neither its first `rank` numbers nor the zeros after.

    LLVM unrolls a loop of few cheap turns into scalars before it looks for vectors, and leaves it
    so. These operations make a turn dear enough to stay one. Once the loop is of vectors they fold
    away, except in the last vector, where they differ from place to place.
    """
    behind = np.arange(row.size) >= rank
    for turn in range(times):
        if turn % 2:
            bits = jnp.asarray(np.where(behind, turn, -1), jnp.int32)
            row = jax.lax.bitcast_convert_type(
                jax.lax.bitcast_convert_type(row, jnp.int32) & bits, jnp.float32
            )
        else:
            row *= jnp.asarray(np.where(behind, -1.0 - turn, 1.0), jnp.float32)
    return row


def _sketch_loop(table, cells, value, rule, *, depth, rank):
    """The loop over single ratings on a flat table.

    cells: uint32[2 · depth, rank, ratings + 1], twice the place in the flat table, plus 1 for the
      sign −1.
    """
    zero, one, rule = jnp.uint32(0), jnp.uint32(1), Rule(*rule)

    def body(carry):
        turn, table, both, squared, learnt = carry
        mine = jax.lax.dynamic_slice(cells, (zero, zero, turn), (2 * depth, rank, 1)).reshape(
            2, depth, rank
        )
        read = _sign(mine) * table.at[mine >> 1].get(mode="promise_in_bounds")
        mean = sum(read[:, row] for row in range(1, depth)) + read[:, 0]
        both = jax.lax.dynamic_update_slice(both, mean * (1 / depth), (zero, turn * zero))
        p, q = both[0, :rank], both[1, :rank]
        mine_value = jax.lax.dynamic_slice(value, (turn,), (1,))[0]
        error = mine_value - _dot(both[:1], both[1:], rank)
        shrink, step, learn = _steps(rule, error)
        change = jnp.stack([step * q - shrink * p, step * p - shrink * q])
        both = jax.lax.dynamic_update_slice(both, change, (zero, jnp.uint32(rank) + turn * zero))

        def write(carry):
            component, table = carry
            for row in range(2 * depth):
                cell = jax.lax.dynamic_slice(cells, (jnp.uint32(row), component, turn), (1, 1, 1))[
                    0, 0
                ]
                change = jax.lax.dynamic_slice(
                    both, (jnp.uint32(row // depth), component + jnp.uint32(rank)), (1, 1)
                )[0]
                place = (cell[0] >> 1,)
                added = jax.lax.dynamic_slice(table, place, (1,)) + _sign(cell) * change
                table = jax.lax.dynamic_update_slice(table, added, place)
            return component + one, table

        table = jax.lax.while_loop(lambda carry: carry[0] < jnp.uint32(rank), write, (zero, table))[
            1
        ]
        return (
            turn + one,
            table,
            both,
            squared + _squared(mine_value, error),
            learnt + learn.astype(jnp.uint32),
        )

    start = (zero, table, jnp.zeros((2, 2 * rank), table.dtype), jnp.zeros((), table.dtype), zero)
    done = jax.lax.while_loop(lambda carry: carry[0] < jnp.uint32(value.shape[0]), body, start)
    return done[1], done[3], done[4]


def _sign(cell: jax.Array) -> jax.Array:
    return 1 - 2 * (cell & 1).astype(jnp.float32)


def _dot(p: jax.Array, q: jax.Array, rank: int) -> jax.Array:
    """Σ pq over the first `rank` of both first rows, as a tree of scalars."""
    whole = rank - rank % LANES if rank > 32 else 0  # of many, eight sums side by side
    terms = list(jnp.sum((p[0, :whole] * q[0, :whole]).reshape(-1, LANES), 0)) if whole else []
    return _tree([*terms, *(p[0, place] * q[0, place] for place in range(whole, rank))])


def _tree(terms: list[jax.Array]) -> jax.Array:
    """Their sum in pairs, and pairs of pairs: one after the other each would wait for the last."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + terms[
            len(terms) & ~1 :
        ]
    return terms[0]


def _one_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, compiled on a CPU as one function without calls into XLA's runtime.

    Under `vmap` the runs follow one another. XLA refuses a scatter there, which is why batching
    must not reach a `dynamic_update_slice`. It aborts where an argument is not used, so arguments
    are few, and each is used whatever the sizes (an index into one row is not).
    """

    def called(*arguments):
        if spread.backend() != "cpu":
            return fn(*arguments)
        with set_xla_metadata(xla_cpu_small_call="true", inlineable="false"):
            return jax.jit(fn, inline=False)(*arguments)

    return jax.custom_batching.sequential_vmap(called)
