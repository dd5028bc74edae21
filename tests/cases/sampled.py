"""Ratings of mechanisms on Poisson samples, and all neighbours of a dense layout of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.noise import laws as noise


def rated_at(pairs, shape, seed: int = 0) -> Ratings:
    user, item = np.asarray(pairs, np.int32).reshape(-1, 2).T
    value = np.random.default_rng(seed).integers(1, 11, len(user)).astype(np.float32) / 2
    return Ratings(user, item, value, np.arange(shape[0]), np.arange(shape[1]), (0.5, 5.0))


EMPTY = rated_at(np.zeros((0, 2)), (300, 200))


@jax.jit
def query(mechanism, state, data, key):
    return mechanism.query(state, data, mechanism.coins(key))


def silent(mechanism):
    return mechanism._replace(noise=noise.none())


def unit(mechanism) -> float:
    """What a unit of the statistics is, in those of a gradient; 1 where they are not whole."""
    (params,) = mechanism.query.args
    return 1.0 if params.grid is None else float(params.grid.unit)


def in_reals(leaf) -> np.ndarray:
    """Statistics as float64, sums mod 2^32 as signed numbers."""
    leaf = np.asarray(leaf)
    return (leaf.view(np.int32) if leaf.dtype == np.uint32 else leaf).astype(np.float64)


def stored(data):
    """(user, item, value) of all that a dense layout holds."""
    user, item = np.nonzero(np.asarray(data.stored.present))
    return user, item, np.asarray(data.stored.value, np.float64)[user, item]


def neighbours(data):
    """(worlds, [worlds, 2] of (cell, rated)): every cell in turn absent, or rated anything."""
    users, items = data.num_users, data.num_items
    cell = np.arange(users * items)
    value, present = np.asarray(data.stored.value), np.asarray(data.stored.present)
    values, masks, which = [], [], []
    for mark, there in ((0.0, False), (0.5, True), (5.0, True), (1e4, True), (-3e30, True)):
        many = np.repeat(value[None], len(cell), 0), np.repeat(present[None], len(cell), 0)
        many[0][cell, cell // items, cell % items] = mark
        many[1][cell, cell // items, cell % items] = there
        values.append(many[0])
        masks.append(many[1])
        which.append(np.stack([cell, np.full(len(cell), there)], 1))
    dense = layout.Dense(jnp.asarray(np.concatenate(values)), jnp.asarray(np.concatenate(masks)))
    return dataclasses.replace(data, stored=dense), np.concatenate(which)
