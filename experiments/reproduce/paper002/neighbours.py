"""Whether paper 002's mechanism gives neighbours the same table: what is known of its privacy."""

from __future__ import annotations

import functools

import jax
import numpy as np

from dpmf_jax import layout, protocol
from dpmf_jax.data import synthetic
from dpmf_jax.layout import ordered
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.mechanisms.sketch import published as sketch
from dpmf_jax.noise import keys
from experiments.reproduce.catalogue import Stored
from experiments.reproduce.claims import Judged

NEIGHBOURS, NEIGHBOUR_EPOCHS, NEIGHBOUR_THRESHOLD = 20, 3, 2.0


def same_tables(stored: Stored) -> Judged:
    """Given hashes, start and order: is the trained table the same again, and for a neighbour?"""
    del stored
    same, moved = trained_tables()
    value = (
        f"generated ratings, ε = {NEIGHBOUR_THRESHOLD:g}:"
        f" {'the same table' if same else 'another table'} when repeated, another for {moved} of"
        f" {NEIGHBOURS} neighbours that lack one rating"
    )
    why = (
        "no draw from a posterior is made and nothing else is random, so where a neighbour's table"
        " differs the log-ratio is infinite"
    )
    holds = not same or moved == 0
    return Judged(
        value, holds, "" if holds else why, {"moved": float(moved), "of": float(NEIGHBOURS)}
    )


@functools.cache
def trained_tables() -> tuple[bool, int]:
    """Whether the table is the same when repeated, and of how many neighbours it is another."""
    ratings = synthetic.generate(num_users=60, num_items=40, num_ratings=900, seed=0)
    data = layout.make(ratings, kind="split", num_devices=1)
    order = ordered.schedule(
        ratings, np.random.default_rng(0).permutation(len(ratings)), size=1, kind="split"
    )
    settings = online.Config(rank=8, threshold=NEIGHBOUR_THRESHOLD, num_epochs=NEIGHBOUR_EPOCHS)
    mechanism = sketch.mechanism(settings, order)
    init_key, train_key = jax.random.split(keys.from_seed(0))

    def table(here: layout.Layout) -> np.ndarray:
        start = protocol.begin(mechanism, init_key, here)
        end, _ = protocol.train(mechanism, train_key, start, here, NEIGHBOUR_EPOCHS)
        return np.asarray(end.public.table)

    first = table(data)
    chosen = np.random.default_rng(1).choice(len(ratings), NEIGHBOURS, replace=False)
    places = (layout.locate(data, ratings.user[at], ratings.item[at]) for at in chosen)
    moved = sum(
        not np.array_equal(first, table(layout.remove_rating(data, place))) for place in places
    )
    return np.array_equal(first, table(data)), moved
