"""Laws of the one loop: chunks, keys, two worlds on one transcript, one compilation."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from dpmf_jax import layout, protocol
from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State
from tests.cases.gaussian import CONFIG, FACTORIES, RATINGS, SWEEP, same, start


@pytest.fixture(autouse=True)
def quick_compilation(request):
    """Most of the time goes into compiling; only where chunks are compared do the compiler's
    liberties matter.
    """
    jax.config.update("jax_disable_most_optimizations", "chunks" not in request.fixturenames)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense")


# --- the loop


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "chunks"),
    [("joint", (2, 3)), ("joint", (1, 4)), ("joint", (1, 1, 1, 1, 1)), ("published", (1, 4))],
)
def test_chunks_equal_the_whole(name, chunks, data, key):
    mechanism = FACTORIES[name](CONFIG)
    whole, info = protocol.train(mechanism, key, start(mechanism, data, key), data, 5)
    state, infos = start(mechanism, data, key), []
    for num_steps in chunks:
        state, part = protocol.train(mechanism, key, state, data, num_steps)
        infos.append(part)
    assert same(state, whole)
    assert same(
        jax.tree.map(lambda *parts: np.concatenate(parts), *infos), jax.tree.map(np.asarray, info)
    )
    assert int(state.step) == 5
    assert state.step.dtype == jnp.int32


def _log_init(key, data, previous):
    return State((), jnp.zeros((2, 8, 2), jnp.uint32), jnp.int32(0))


def _log_coins(key):
    return jax.random.key_data(key)


def _log_query(state, data, coins):
    return coins, Info(jnp.float32(0), jnp.float32(0))


def _log_sample(key, statistics):
    return statistics, jax.random.key_data(key)


def _log_update(state, response, data):
    coins, drawn = response
    return state._replace(
        private=state.private.at[0, state.step].set(coins).at[1, state.step].set(drawn)
    )


LOG = Mechanism(
    *map(Partial, (_log_init, _log_coins, _log_query)),
    noise=noise.none()._replace(sample=Partial(_log_sample)),
    update=Partial(_log_update),
    release=Partial(lambda state: Release()),
    guarantee=gaussian.mechanism(CONFIG).guarantee,
)


def test_every_key_is_used_once_whatever_the_chunks(data, key):
    state = LOG.init(key, data, None)
    for num_steps in (3, 1, 4):
        state, _ = protocol.train(LOG, key, state, data, num_steps)
    used = np.asarray(state.private).reshape(-1, 2)
    assert len(np.unique(used, axis=0)) == len(used) == 16
    assert same(state, protocol.train(LOG, key, LOG.init(key, data, None), data, 8)[0])


def test_the_key_of_a_step_depends_on_the_run_and_on_the_step(data, key):
    other = jax.random.fold_in(key, 17)
    states = [protocol.train(LOG, k, LOG.init(k, data, None), data, 2)[0] for k in (key, other)]
    used = np.concatenate([np.asarray(state.private)[:, :2].reshape(-1, 2) for state in states])
    assert len(np.unique(used, axis=0)) == 8


def test_coupled_worlds_with_the_same_data_are_the_run_itself(data, key):
    mechanism = gaussian.mechanism(CONFIG)
    state = start(mechanism, data, key)
    (first, second), distance, _ = protocol.train_coupled(
        mechanism, key, (state, state), (data, data), 4
    )
    alone, _ = protocol.train(mechanism, key, state, data, 4)
    assert same(first, second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # another compiled program
    np.testing.assert_array_equal(distance, np.zeros(4))


def test_coupled_worlds_follow_the_first_ones_responses(data, key):
    """Joint noise: everything public, so the second world's public state is the first one's,
    whatever its ratings.
    """
    mechanism = gaussian.joint_noise(CONFIG)
    other = layout.make(dataclasses.replace(RATINGS, value=6 - RATINGS.value), kind="dense")
    states = start(mechanism, data, key), start(mechanism, other, key)
    (first, second), distance, _ = protocol.train_coupled(mechanism, key, states, (data, other), 3)
    assert same(first.public, second.public)
    assert np.all(np.asarray(distance) > 1)


def test_a_part_is_traced_once_in_all_programs(data, key):
    traced = []

    def query(state, data, coins):
        traced.append(state)
        return made.query(state, data, coins)

    made = gaussian.mechanism(CONFIG)
    watched = made._replace(query=Partial(query))
    state = start(watched, data, key)
    protocol.train(watched, key, state, data, 2)
    protocol.train(watched, key, state, data, 3)
    protocol.train_coupled(watched, key, (state, state), (data, data), 2)
    assert len(traced) == 1


def test_what_is_done_in_each_world_is_compiled_once():
    """And is of each world's own numbers."""
    worlds = [(jnp.arange(3.0), {"by": jnp.float32(by)}) for by in (2, 5, 7)]

    @jax.jit
    def scaled(worlds):
        return protocol.in_each(lambda row, data: jnp.sin(row * data["by"]), worlds)

    found = scaled(worlds)
    for (row, data), one in zip(worlds, found, strict=True):
        np.testing.assert_allclose(one, np.sin(row * data["by"]), rtol=1e-6)
    assert str(jax.make_jaxpr(scaled)(worlds)).count(" sin ") == 1


def test_seeds_differ_above_bit_32(data):
    mechanism = gaussian.joint_noise(CONFIG)
    low, high = (keys.from_seed(seed) for seed in (5, 5 + 2**32))
    runs = [
        protocol.train(mechanism, k, start(mechanism, data, k), data, 2)[0].public
        for k in (low, high, low)
    ]
    assert same(runs[0], runs[2])
    assert not same(runs[0].user_factors, runs[1].user_factors)
    for seed in (-1, 2**64):
        with pytest.raises(UsageError):
            keys.from_seed(seed)


# --- one compilation


@pytest.mark.seconds
def test_a_sweep_over_real_settings_seeds_and_neighbours_compiles_once(data, key):
    before = protocol.train._cache_size()
    state = start(gaussian.joint_noise(CONFIG), data, key)
    train = partial(protocol.train, state=state, num_steps=2)
    finals = [
        train(gaussian.joint_noise(config), key, data=data)[0].public.user_factors
        for config in SWEEP
    ]
    train(gaussian.joint_noise(CONFIG), keys.from_seed(9), data=data)
    address = layout.locate(data, RATINGS.user[0], RATINGS.item[0])
    train(gaussian.joint_noise(CONFIG), key, data=layout.replace_value(data, address, 1.0))
    train(gaussian.joint_noise(CONFIG), key, data=layout.remove_rating(data, address))
    train(gaussian.joint_noise(CONFIG), key, data=layout.remove_user(data, 3))
    assert protocol.train._cache_size() == before + 1
    # The settings do something, except for delta (a price alone) and the centre (in the state that
    # was given).
    assert sum(not same(final, finals[0]) for final in finals[1:]) == len(SWEEP) - 3
    train(gaussian.joint_noise(CONFIG), key, data=data, num_steps=3)
    assert protocol.train._cache_size() == before + 2  # so the counter counts
