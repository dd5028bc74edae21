"""Weights of ratings in `als`: inside the message's norm, at the same price, and of use."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

from accounting import gaussian
from audits.mechanism import sensitivity
from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.als import messages
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.noise import keys
from dpmf_jax.training import measure
from tests.cases.als_messages import (
    ITEMS,
    MEANS,
    USERS,
    config,
    lengths,
    public_states,
    ratings,
    statistics,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def weighted(seed=4):
    """Those of one user all count little, and one of hers not at all."""
    of = ratings()
    weight = np.random.default_rng(seed).integers(0, 9, of.num_ratings) / np.float32(8)
    weight[of.user == 3] = 1 / 8
    return dataclasses.replace(of, weight=weight.astype(np.float32))


@pytest.mark.parametrize("change", [MEANS, pytest.param({}, marks=pytest.mark.seconds)])
def test_a_weighted_message_is_of_one_user_alone_and_no_longer_than_the_clip(change):
    of = weighted()
    data = layout.make(of, kind="dense", num_devices=1)
    longest = []
    for mechanism, public in public_states(als.phases(config(**change)), data):
        clip = float(mechanism.query.args[0].whole_clip[0])
        longest.append(lengths(mechanism, public, data, of) / clip)
    assert np.max(longest) <= 1
    assert np.max(longest) > 0.99


def test_counts_are_of_weights():
    """Each rating counts its weight times its user's 1/√m, with m the ratings that count."""
    of = weighted()
    data = layout.make(of, kind="dense", num_devices=1)
    (mechanism, public), *_ = public_states(als.phases(config(**MEANS)), data)
    [sums] = statistics(mechanism, public, data)
    clip = float(mechanism.query.args[0].clip[0, 0])
    counting = np.bincount(of.user, of.weight > 0, USERS)
    own = of.weight / np.sqrt(np.maximum(counting, 1))[of.user]
    expected = np.bincount(of.item, own, ITEMS)
    np.testing.assert_allclose(sums / clip, expected, atol=USERS / clip)


def unweighted_norms(query, params, state, data, coins):
    """Norms as if all ratings counted little: the message is longer than its clip."""
    scales = messages.scales

    def short(users, count, norms, clip, kappa, *, rank, unit):
        return scales(users, count, norms, clip, kappa, rank=rank, unit=unit / 8)

    messages.scales = short
    try:
        return query(params, state, data, coins)
    finally:
        messages.scales = scales


@pytest.mark.seconds
@pytest.mark.parametrize("bug", [False, True])
def test_the_audit_finds_a_norm_that_weights_are_left_out_of(bug):
    of = weighted()
    data = layout.make(of, kind="dense", num_devices=1)
    (counts, _), (means, steps) = als.phases(config(**MEANS))
    if bug:
        query = Partial(unweighted_norms, means.query.func)
        means = means._replace(query=Partial(query, *means.query.args))
    del counts
    [largest, *_] = sensitivity.audit(
        means, of, data, key=keys.from_seed(0), num_steps=steps, num_neighbours=USERS, climb=False
    )
    assert largest.verdict == ("violated" if bug else "consistent")


@pytest.mark.seconds
def test_who_says_which_ratings_are_worth_little_gets_better_means():
    """A third of the ratings are noise, and their weight says so."""
    of = synthetic.generate(num_users=3_000, num_items=20, num_ratings=20_000, rank=2)
    random = np.random.default_rng(0)
    noise = random.random(of.num_ratings) < 1 / 3
    value = np.where(noise, random.uniform(1, 5, of.num_ratings), of.value).astype(np.float32)
    given = dataclasses.replace(of, value=value)
    weight = np.where(noise, 0, 1).astype(np.float32)
    z = gaussian.solve_noise_multiplier(8.0, 1e-5, 1)
    made = als.phases(config(noise_multiplier=z, num_users=of.num_users, **MEANS))

    def error(of_given):
        keys_of = tuple(map(keys.from_seed, (0, 1)))
        model = measure.trained(made, keys_of, layout.make(of_given, num_devices=1), of_given)
        predicted = model.center[of.item] + model.user_factors[of.user, 0]
        return float(np.sqrt(np.mean((predicted - of.value)[~noise] ** 2)))

    assert error(dataclasses.replace(given, weight=weight)) < error(given) - 0.02
    jax.clear_caches()
