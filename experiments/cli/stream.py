"""`dpmf demo stream`: new users and items come in waves, and a table of fixed size predicts them.

An example of paper 002's count sketch, on generated ratings, without privacy. Ids are any 31-bit
numbers: a newcomer's vector is queried and updated like any other, and nobody is registered. A
store that appends a row for each newcomer stands beside it. Ratings come one by one, with
p ← p + η(e q - λp) and likewise q. Unlike in the paper, the vector of id 0 learns from every rating
and is added to all, so that a newcomer starts from what is common.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.cli import console

RANK, DEPTH = 4, 4
LEARNING_RATE, REGULARIZATION, SCALE, CENTER = 0.03, 0.1, 0.1, 3.5  # searched on generated ratings
# The first wave, this share of all, is gone through so often.
WAVES, FIRST_SHARE, PASSES = 5, 1 / 3, 10
AFTER = (0, 3, 10, 20)  # ratings of each newcomer that are learnt from
TESTED = 10  # the last ratings of each user, which are not


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Let users and items join a count sketch of fixed size, and see how soon it predicts them."""

    users: int = 3_000
    """Number of generated users in all waves; each has 40 ratings in the mean."""
    items: int = 600
    """Number of generated items in all waves."""
    seed: int = 0
    """Seed of ids, order, hashes and start."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    console.emit(stream(command), json=command.json, render=render)


class Batch(NamedTuple):
    """Ratings in the order in which they come.

    user, item: ids. user_row, item_row: their rows in the store. value: without the centre.
    """

    user: Any
    item: Any
    user_row: Any
    item_row: Any
    value: Any


class Stores(NamedTuple):
    """The sketch and the store.

    table: float32[depth, width]. users, items: float32[rows + 1, rank]; newcomers take the next.
    """

    table: Any
    users: Any
    items: Any


def stream(command: Command) -> dict[str, Any]:
    """The result, a JSON-able object.

    rows: of each wave, the users and items, the cells of both stores, and the newcomers' RMSE after
    k ratings each. centre_alone: the RMSE of no model.
    """
    import jax
    import numpy as np

    from dpmf_jax.data import synthetic
    from dpmf_jax.kernels import count_sketch
    from dpmf_jax.noise import keys

    ratings = synthetic.generate(
        num_users=command.users, num_items=command.items, num_ratings=40 * command.users
    )
    rng = np.random.default_rng(command.seed)
    order = rng.permutation(len(ratings))
    user, item = ratings.user[order], ratings.item[order]
    sizes = command.users, command.items
    come = [
        np.where(rng.random(num) < FIRST_SHARE, 0, rng.integers(1, WAVES, num)) for num in sizes
    ]
    ids = [
        rng.choice(np.arange(1, 2**31 - 2, 2**9), len(waves), replace=False).astype(np.int32)
        for waves in come
    ]
    every = Batch(ids[0][user], ids[1][item], user, item, ratings.value[order] - np.float32(CENTER))
    nth, left = (
        _nth(user),
        _nth(user[::-1])[::-1],
    )  # of its user's ratings, from the first and from the last
    wave, tested = np.maximum(come[0][user], come[1][item]), left < TESTED

    hash_key, table_key, *row_keys = jax.random.split(keys.from_seed(command.seed), 4)
    first = [int(np.sum(waves == 0)) for waves in come]
    width = count_sketch.width(
        *first, RANK, depth=DEPTH, gain=1.0
    )  # what the first wave's vectors take, and no more
    hashes = count_sketch.hashes(hash_key, DEPTH)
    table = count_sketch.random_table(table_key, DEPTH, width, SCALE)
    starts = (
        jax.random.normal(key, (len(waves) + 1, RANK))
        for key, waves in zip(row_keys, come, strict=True)
    )
    stores = Stores(table, *(SCALE * start for start in starts))
    learn_from, squared_errors = _programs()

    def learn(chosen: Any) -> None:
        nonlocal stores
        places = np.argsort(~chosen, kind="stable").astype(
            np.int32
        )  # of one length: one program learns all
        stores = learn_from(stores, hashes, every, places, int(chosen.sum()))

    for _ in range(PASSES):
        learn((wave == 0) & ~tested)
    rows = []
    for now in range(1, WAVES):
        new, here = come[0][user] == now, (wave == now) & ~tested
        errors, seen = {}, 0
        for k in AFTER:
            learn(here & new & (nth >= seen) & (nth < k))
            seen, squared = (
                k,
                np.asarray(squared_errors(stores, hashes, every))[:, new & tested & (wave == now)],
            )
            errors |= dict(
                zip((f"sketch_{k}", f"stored_{k}"), np.sqrt(squared.mean(1)).tolist(), strict=True)
            )
        learn(here & ~(new & (nth < seen)))
        users, items = (int(np.sum(waves <= now)) for waves in come)
        cells = {"table_cells": int(stores.table.size), "stored_cells": (users + items) * RANK}
        rows.append({"wave": now, "users": users, "items": items, **cells, **errors})
    alone = float(np.sqrt(np.mean(every.value[tested & (come[0][user] > 0)] ** 2)))
    return {
        "example": "stream",
        "data": ratings.name,
        "private": False,
        "rows": rows,
        "centre_alone": alone,
    }


def _nth(user: Any) -> Any:
    """int[ratings]: how many ratings of the same user came before."""
    import numpy as np

    by_user = np.argsort(user, kind="stable")
    nth = np.empty(len(user), np.int64)
    nth[by_user] = np.arange(len(user)) - np.searchsorted(user[by_user], user[by_user])
    return nth


@functools.cache
def _programs() -> tuple[Any, Any]:
    """(program of the stores after `count` ratings, program of both stores' squared errors)."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax.kernels.count_sketch import ITEMS, USERS, query, update

    def read(stores: Stores, hashes: Any, at: Batch) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        def with_common(family: int, ids: Any) -> Any:
            return query(stores.table, hashes, family, ids, rank=RANK) + query(
                stores.table, hashes, family, 0, rank=RANK
            )

        rows = (
            stores.users[at.user_row] + stores.users[-1],
            stores.items[at.item_row] + stores.items[-1],
        )
        return (with_common(USERS, at.user), with_common(ITEMS, at.item)), rows

    def changes(p: Any, q: Any, value: Any) -> tuple[Any, ...]:
        error = value - p @ q
        return tuple(LEARNING_RATE * (error * b - REGULARIZATION * a) for a, b in ((p, q), (q, p)))

    @jax.jit
    def learn(stores: Stores, hashes: Any, every: Batch, places: Any, count: Any) -> Stores:
        def one(turn: Any, stores: Stores) -> Stores:
            at = Batch(*(part[places[turn]] for part in every))
            sketched, rows = (changes(*pair, at.value) for pair in read(stores, hashes, at))
            table = stores.table
            for family, number, change in zip((USERS, ITEMS), at[:2], sketched, strict=True):
                table = update(
                    table,
                    hashes,
                    family,
                    jnp.stack([number, 0 * number]),
                    jnp.stack([change, change]),
                )
            users, items = (
                part.at[jnp.stack([row, -1])].add(change)
                for part, row, change in zip(stores[1:], at[2:4], rows, strict=True)
            )
            return Stores(table, users, items)

        return jax.lax.fori_loop(0, count, one, stores)

    @jax.jit
    def squared_errors(stores: Stores, hashes: Any, every: Batch) -> Any:
        return jnp.stack(
            [(every.value - jnp.sum(p * q, 1)) ** 2 for p, q in read(stores, hashes, every)]
        )

    return learn, squared_errors


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    drawn = Table(title="newcomers' RMSE after k ratings each: count sketch | rows appended")
    for name in (
        "wave",
        "users",
        "items",
        "table cells",
        "stored cells",
        *(f"k = {k}" for k in AFTER),
    ):
        drawn.add_column(name, justify="right")
    for row in result["rows"]:
        sizes = (
            f"{row[name]:,}" for name in ("wave", "users", "items", "table_cells", "stored_cells")
        )
        drawn.add_row(
            *sizes, *(f"{row[f'sketch_{k}']:.3f} | {row[f'stored_{k}']:.3f}" for k in AFTER)
        )
    return Group(
        drawn, f"The centre alone: {result['centre_alone']:.3f}. Generated ratings; not private."
    )
