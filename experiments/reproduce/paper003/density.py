"""Theorem 1 and Lemma 1 of paper 003, measured: the exact density of V in two worlds that one
rating sets apart.

For each neighbour the largest |log p(V) - log p'(V)| over ε, over responses drawn in the one world
and the one response at which its noise is 0, where the bound is attained. U is public; or fitted on
the one world's ratings and kept, as the proof takes it; or fitted again in the other world, as the
procedure does.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.objective import value_change_scale
from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels.descent import unit_rows
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.objective import perturbed
from dpmf_jax.noise import keys
from dpmf_jax.noise.laws import Noise
from dpmf_jax.protocol import Mechanism, State, begin
from experiments.cli import provenance
from experiments.reproduce import store
from experiments.reproduce.page import Outcome
from experiments.reproduce.paper import Bench, Say
from experiments.reproduce.paper003.table import LEARNING_RATE, RANK, REGULARIZATION, SHORT

EPSILON = 0.15
USERS, ITEMS = 150, 100  # of the slice: the first users, the most rated items
NEIGHBOURS, DRAWS = 12, 20
PUBLIC, LEMMA, BY_PASSES = "public U, theorem 1", "public U, lemma 1", "public U, 100 passes of SGD"
KEPT, REFITTED = "fitted U, kept", "fitted U, fitted again"


class Kind(NamedTuple):
    """make: of the mechanism. refit: whether U is fitted again in the other world."""

    config: objective.Config
    make: Callable[[objective.Config], Mechanism]
    refit: bool = False


def slice_of(ratings: Ratings) -> Ratings:
    """The ratings of the first users for the most rated items."""
    items = np.sort(
        np.argsort(-np.bincount(ratings.item, minlength=ratings.num_items), kind="stable")[:ITEMS]
    )
    place = np.full(ratings.num_items, -1, np.int32)
    place[items] = np.arange(len(items), dtype=np.int32)
    keep = (ratings.user < USERS) & (place[ratings.item] >= 0)
    left = ratings.take(keep, f"the first {USERS} users and the {ITEMS} most rated items")
    return dataclasses.replace(
        left, item=place[left.item], users=ratings.users[:USERS], items=ratings.items[items]
    )


def kinds(ratings: Ratings) -> dict[str, Kind]:
    """What is measured, by series."""
    config = objective.Config(
        epsilon=EPSILON,
        rating_range=ratings.rating_range,
        rank=RANK,
        prior_count=ratings.num_ratings,
        regularization=REGULARIZATION,
        user_regularization=REGULARIZATION,
        learning_rate=LEARNING_RATE,
        num_passes=SHORT[-1],
    )
    return {
        PUBLIC: Kind(config, objective.public_users),
        LEMMA: Kind(dataclasses.replace(config, noise="laplace"), _of_real_numbers),
        BY_PASSES: Kind(dataclasses.replace(config, num_iterations=SHORT[-1]), _public_by_passes),
        KEPT: Kind(config, objective.mechanism),
        REFITTED: Kind(config, objective.mechanism, refit=True),
    }


def _of_real_numbers(config: objective.Config) -> Mechanism:
    """`public_users` with noise of real numbers, by Lemma 1, where it draws whole ones."""
    public: Any = objective.public_users(dataclasses.replace(config, noise="l2_laplace"))
    low, high = config.rating_range
    scale = value_change_scale(
        noise=config.noise, epsilon=config.epsilon, range_width=high - low, rank=config.rank
    )
    (params,) = public.guarantee.args
    params = dataclasses.replace(params, law=config.noise, scale=jnp.float32(scale))
    return public._replace(
        noise=perturbed.minimiser(config.noise, scale, config.ridge),
        guarantee=jax.tree_util.Partial(public.guarantee.func, params),
    )


def _public_by_passes(config: objective.Config) -> Mechanism:
    """The published passes with the public users of `public_users`, rows of norm 1."""
    own = objective.mechanism(config)
    public = objective.public_users(dataclasses.replace(config, num_iterations=None))
    return own._replace(init=jax.tree_util.Partial(_init_by_passes, public.init))


def _init_by_passes(init: Any, key: jax.Array, data: layout.Layout, previous: Any) -> State:
    state = init(key, data, previous)
    users = state.public.user_factors
    items = unit_rows(key, data.num_items, users.shape[1])
    public = state.public._replace(user_factors=None, item_factors=items)
    return State(public, objective.Private(users, None, None), state.step)


@jax.jit
def _statistics(query: Callable[..., Any], state: State, data: layout.Layout) -> Any:
    return query(state, data, None)[0]  # no mechanism here draws coins


@functools.partial(jax.jit, static_argnames="draws")
def _largest(
    law: Noise, quiet: Noise, key: jax.Array, here: Any, there: Any, draws: int
) -> jax.Array:
    """The largest |log-ratio| over `draws` responses of the one world and that without noise."""
    responses = jax.vmap(law.sample, (0, None))(jax.random.split(key, draws), here)
    responses = jnp.concatenate([responses, quiet.sample(key, here)[None]])
    return jnp.max(jnp.abs(jax.vmap(law.log_ratio, (0, None, None))(responses, here, there)))


def _quiet(config: objective.Config) -> Noise:
    """The same with a noise of scale 0."""
    if config.num_iterations is None:
        return perturbed.minimiser(config.noise, 0.0, config.ridge)
    return perturbed.passes(config.noise, 0.0, config.learning_rate, config.num_iterations)


def neighbours(ratings: Ratings, data: layout.Layout, seed: int) -> Iterator[layout.Layout]:
    """Neighbours: a rating moves to the other end of the range.

    Half of them move random ratings, half one of the least rated items.
    """
    low, high = ratings.rating_range
    random = np.random.default_rng(seed).permutation(ratings.num_ratings)[: NEIGHBOURS // 2]
    count = np.bincount(ratings.item, minlength=ratings.num_items)
    ends = (ratings.value == low) | (ratings.value == high)
    order = np.lexsort((np.arange(ratings.num_ratings), count[ratings.item], ~ends))
    few = [place for place in order if place not in random][: NEIGHBOURS - len(random)]
    for place in (*random, *few):
        address = layout.locate(data, ratings.user[place], ratings.item[place])
        yield layout.replace_value(
            data, address, high if ratings.value[place] <= (low + high) / 2 else low
        )


def measure(ratings: Ratings, seed: int, say: Say) -> dict[str, Any]:
    """By series, each neighbour's largest log-ratio over ε; and the longest fitted row of U."""
    data = layout.make(ratings, num_devices=1)
    init_key, key = jax.random.split(keys.from_seed(seed))
    worlds = list(neighbours(ratings, data, seed))
    ratios_of: dict[str, Any] = {}
    for name, (config, make, refit) in kinds(ratings).items():
        mechanism = make(config)
        state = begin(mechanism, init_key, data)
        here = _statistics(mechanism.query, state, data)
        ratios = []
        for place, other in enumerate(worlds):
            again = begin(mechanism, init_key, other) if refit else state
            there = _statistics(mechanism.query, again, other)
            ratio = _largest(
                mechanism.noise, _quiet(config), jax.random.fold_in(key, place), here, there, DRAWS
            )
            ratios.append(float(ratio) / EPSILON)
        ratios_of[name] = ratios
        say(
            f"003/theorem1: {name}: largest log-ratio {max(ratios):.4g} of ε, over {len(ratios)}"
            " neighbours"
        )
        if state.private is not None:
            users = jnp.linalg.norm(state.private.user_factors, axis=1)
            ratios_of.setdefault("longest", {})[name] = float(jnp.max(users))
    return ratios_of


def _kept(ratings: Ratings, folder: Path, seed: int, say: Say) -> dict[str, Any]:
    """What `measure` finds, and what computed it; measured once."""
    config = {name: dataclasses.asdict(kind.config) for name, kind in kinds(ratings).items()}
    sizes = {"neighbours": NEIGHBOURS, "draws": DRAWS, "seed": seed, "ratings": ratings.sha256()}
    settings = {"config": config, **sizes}
    kept = store.read(folder, "objective-density", settings)
    if kept is None:
        started = time.monotonic()
        kept = {
            "found": measure(ratings, seed, say),
            "commit": provenance.commit(),
            "device": provenance.device(),
            "seconds": time.monotonic() - started,
        }
        store.write(folder, "objective-density", settings, kept)
    return kept


def run(bench: Bench) -> Outcome:
    """Rows of `003/theorem1`, for the first of the seeds."""
    ratings, seed = slice_of(bench.data.ratings), bench.seeds[0]
    kept = _kept(ratings, bench.store, seed, bench.say)
    found = kept["found"]
    outcome, longest = Outcome([], [], [], {"curves": []}), found["longest"]
    where = {"commits": [kept["commit"]], "devices": [kept["device"]], "seconds": kept["seconds"]}
    for series, kind in kinds(ratings).items():
        its: dict[str, Any] = {"num_steps": 1, "variant": series}
        for place, ratio in enumerate(found[series], 1):
            outcome.row(series, "log_ratio", "end", float(place), [ratio], **its)
        headline = kind.make(kind.config).guarantee(1).with_seed().headline
        where |= {"config": dataclasses.asdict(kind.config)}
        where |= {"longest_user_factor": longest.get(series)}
        outcome.setting(series, None, series, headline, [seed], **where)
    half = NEIGHBOURS // 2
    outcome.notes.append(
        f"{ratings.num_ratings:,} ratings of the first {USERS} users for the {ITEMS} most rated"
        f" items, d = {RANK}, ε = {EPSILON:g}. Neighbours 1 to {half}: a random rating moves to the"
        " other end of the range; the others: one of the least rated items. Of each the largest"
        f" over {DRAWS} responses of the one world and the response without noise. The longest row"
        f" of the fitted U has norm {longest[KEPT]:.2f}; the theorem needs 1 at most."
    )
    return outcome
