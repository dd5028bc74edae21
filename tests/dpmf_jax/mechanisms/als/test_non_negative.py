"""Non-negative factors: those of items and of users, at the price that they have without it."""

import dataclasses

import jax
import numpy as np
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.noise import keys
from dpmf_jax.training.identity import fingerprint
from tests.cases.als_messages import ITEMS, MEANS, config, lengths, public_states, ratings

pytestmark = pytest.mark.usefixtures("quick_compilation")

MADE = config(non_negative=True, noise_multiplier=0.3)


@pytest.mark.seconds
@pytest.mark.parametrize("num_features", [0, 3])
def test_no_factor_is_ever_below_0(num_features):
    """But weights of features, which are about 0, are."""
    random = np.random.default_rng(1)
    features = random.normal(size=(ITEMS, 3)) if num_features else None
    made = dataclasses.replace(MADE, num_features=num_features)
    data, key, state = layout.make(ratings(), kind="dense", num_devices=1), keys.from_seed(0), None
    seen = []
    for mechanism, num_steps in als.phases(made, features):
        key, init_key = jax.random.split(key)
        state = jax.jit(mechanism.init)(init_key, data, None if state is None else state.public)
        for step in range(num_steps + 1):
            items, users = state.public.items.units, state.private.users.units
            assert items[:, :2].min() >= 0
            assert users[:, :2].min() >= 0
            seen.append((items[:, :2].max(axis=0), users[:, 2:].min(initial=0)))
            if step < num_steps:
                state, _ = protocol.train(mechanism, jax.random.fold_in(key, step), state, data, 1)
    largest, least = zip(*seen, strict=True)
    assert np.max(largest, axis=0).min() > 0
    assert (np.min(least) < 0) == bool(num_features)
    assert state.public.item_factors.min() >= 0 or num_features


@pytest.mark.seconds
def test_messages_are_no_longer_than_without_it():
    """A clip bounds what follows from any answer, and this one is a user's own as well."""
    of = ratings()
    data, longest = layout.make(of, kind="dense", num_devices=1), []
    for mechanism, public in public_states(als.phases(MADE), data):
        clip = float(mechanism.query.args[0].whole_clip[0])
        longest.append(lengths(mechanism, public, data, of).max() / clip)
    assert 0.99 < max(longest) <= 1


def test_it_costs_nothing():
    prices = [
        [made.guarantee(num) for made, num in als.phases(one)]
        for one in (MADE, dataclasses.replace(MADE, non_negative=False))
    ]
    assert prices[0] == prices[1]


def test_without_factors_it_is_the_program_without_it():
    both = [als.phases(config(non_negative=one, **MEANS)) for one in (False, True)]
    assert len({fingerprint([made for made, _ in phases]) for phases in both}) == 1
    first, second = (jax.tree.structure(phases) for phases in both)
    assert first == second
