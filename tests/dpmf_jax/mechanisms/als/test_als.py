"""Alternating least squares per user: what a message is, what it costs, and that it learns."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import accounting
from accounting import gaussian
from audits.mechanism import keys as keys_used
from audits.mechanism import sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.data import splits, synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms.als import factor_passes
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.training import measure
from tests.cases.als_messages import (
    ITEMS,
    MEANS,
    USERS,
    config,
    only,
    public_states,
    ratings,
    signed,
    statistics,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("rank", "kind", "num_features", "least_signal"),
    [
        (2, "dense", 0, 0.0),
        pytest.param(2, "dense", 0, 1e9, id="means in place of factors"),
        pytest.param(2, "split", 0, 0.0, marks=pytest.mark.seconds),
        pytest.param(0, "dense", 0, 0.0, marks=pytest.mark.seconds),
        pytest.param(2, "dense", 3, 0.0, marks=pytest.mark.seconds),
        pytest.param(0, "dense", 3, 0.0, marks=pytest.mark.seconds),
    ],
)
def test_a_message_is_of_one_user_alone_and_no_longer_than_the_clip(
    rank, kind, num_features, least_signal
):
    """Whoever is left out, exactly their own message is missing from every sum, mod 2^32."""
    features = np.random.default_rng(1).normal(size=(ITEMS, 3)) if num_features else None
    of = ratings()
    data = layout.make(of, kind=kind, num_devices=1)
    longest = []
    change = MEANS if rank == 0 else {"least_signal": least_signal}
    made = config(num_features=num_features, slopes=True, **change)
    for mechanism, public in public_states(als.phases(made, features), data):
        clip = float(mechanism.query.args[0].whole_clip[0])
        everybody = statistics(mechanism, public, data)
        # each has shapes of its own in the split layout
        for user in range(USERS if kind == "dense" else 4):
            own, others = (
                statistics(mechanism, public, layout.make(only(of, kept), kind=kind, num_devices=1))
                for kept in (of.user == user, of.user != user)
            )
            for whole, mine, rest in zip(everybody, own, others, strict=True):
                np.testing.assert_array_equal(whole, mine + rest)
            longest.append(math.sqrt(sum((signed(leaf) ** 2).sum() for leaf in own)) / clip)
    assert max(longest) <= 1
    assert max(longest) > 0.999
    assert min(longest) == 0  # of who has no ratings


@pytest.mark.seconds
def test_phases_of_one_kind_share_a_program():
    """Counts, means and factors are compiled; the means after the factors are not once more."""
    data = layout.make(ratings(), kind="dense", num_devices=1)
    phases = als.phases(config(num_passes=2))
    assert [steps for _, steps in phases] == [1, 1, 2, 1]
    before = protocol.train._cache_size()
    measure.trained(phases, (keys.from_seed(0), keys.from_seed(1)), data, ratings())
    assert protocol.train._cache_size() == before + 3


@pytest.mark.parametrize("users", [1_000, 95_029, 1_000_000, 20_000_000])
def test_sums_of_all_users_keep_within_32_bits(users):
    """Where all of them spend their whole messages on one item, and the noise is far out."""
    for z in (0.5, 1.8, 8.0):
        for mechanism, _ in als.phases(config(noise_multiplier=z, num_users=users)):
            params = mechanism.query.args[0]
            longest = users * float(jnp.max(params.whole_clip))
            assert longest + 16 * float(params.noise_scale) <= 2**31
            assert float(jnp.min(params.clip[:, 0])) >= 32


@pytest.mark.seconds
def test_many_users_of_few_items_are_learned_from():
    """30,000 users of four items at ε = 20: with the finest grid their sums wrap around."""
    of = synthetic.generate(num_users=30_000, num_items=4, num_ratings=50_000, rank=2)
    z = gaussian.solve_noise_multiplier(20.0, 1e-5, 1)

    def error(num_users):
        made = als.phases(config(noise_multiplier=z, num_users=num_users, **MEANS))
        model = measure.trained(
            made, tuple(map(keys.from_seed, (0, 1))), layout.make(of, num_devices=1), of
        )
        predicted = model.center[of.item] + model.user_factors[of.user, 0]
        return float(np.sqrt(np.mean((predicted - of.value) ** 2)))

    assert error(of.num_users) < 0.95 < 1.2 < error(None)


def test_phases_cost_what_was_asked_for():
    z = gaussian.solve_noise_multiplier(4.0, 1e-5, 1)
    for change in ({}, MEANS, {"num_passes": 5, "growth": 1.5}):
        phases = als.phases(config(noise_multiplier=z, **change))
        spent = [loss for made, num in phases for loss in made.guarantee(num).losses]
        assert sum(1 / loss.noise_multiplier**2 for loss in spent) <= 1 / z**2
        whole = accounting.compose(*(made.guarantee(num) for made, num in phases))
        assert 3.99 < whole.accountants["exact"] <= whole.epsilon <= 4.0
        assert whole.accountants["pld"] == pytest.approx(4.0, abs=0.01)  # dp-accounting's
        assert (whole.unit, whole.status) == ("user", "proved")
        assert "joint" in str(whole)


def test_a_user_who_is_replaced_moves_a_sum_twice_as_far():
    """At the same price the messages are half as long, and the price says so."""
    removed, replaced = (
        als.phases(config(relation=f"user {change}")) for change in ("added or removed", "replaced")
    )
    for (one, num), (other, _) in zip(removed, replaced, strict=True):
        for step in range(num):
            shorter = float(other.query.args[0].whole_clip[step])
            assert shorter == pytest.approx(float(one.query.args[0].whole_clip[step]) / 2, abs=1)
            sigma = float(other.query.args[0].noise_scale)
            losses = other.guarantee(num).losses
            assert losses[step].noise_multiplier == pytest.approx(sigma / (2 * shorter))
        assert str(one.guarantee(num).relation) != str(other.guarantee(num).relation)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"counts_share": 0.5}, ValueError),
        ({"rank": 0}, ValueError),
        ({"factors_share": 0.0, "counts_share": 0.72}, ValueError),
        ({"growth": 0.0}, ValueError),
        ({"gram_share": 1.0}, ValueError),
        ({"noise_multiplier": 1e4}, PrivacyError),
    ],
)
def test_settings_that_no_price_is_known_for_are_refused(change, error):
    with pytest.raises(error):
        als.phases(config(**change))


@pytest.mark.seconds
def test_factors_learn_what_means_cannot():
    """On generated ratings with factors, at ε = 20; both lose to nobody's privacy."""
    of = synthetic.generate(num_users=1_500, num_items=300, num_ratings=60_000, rank=2, seed=1)
    held_out = np.random.default_rng(0).random(of.num_ratings) < 0.1
    train = Ratings(
        *(column[~held_out] for column in (of.user, of.item, of.value)),
        of.users,
        of.items,
        of.rating_range,
    )
    data = layout.make(train, num_devices=1)
    z = gaussian.solve_noise_multiplier(20.0, 1e-5, 1)
    errors = []
    few = {"rank": 3, "num_passes": 4}
    for change in (MEANS, few, few | {"non_negative": True}):
        *earlier, (last, num_steps) = als.phases(config(noise_multiplier=z, **change))
        init_key, key = jax.random.split(keys.from_seed(0))
        state = protocol.begin(last, init_key, data, earlier)
        state, _ = protocol.train(last, key, state, data, num_steps)
        model = jax.device_get(protocol.factors(state))
        user, item = of.user[held_out], of.item[held_out]
        found = np.sum(model.user_factors[user] * model.item_factors[item], axis=1)
        errors.append(np.sqrt(np.mean((found + model.center[item] - of.value[held_out]) ** 2)))
        assert last.release(state).user_factors is None
    means, factors, non_negative = errors
    assert factors < 0.97 * means < 0.97 * np.std(of.value)
    assert non_negative < 0.99 * means


@pytest.mark.seconds
def test_features_say_of_new_items_what_means_cannot():
    """Half of the taste is in a feature, and the last items were never rated."""
    random = np.random.default_rng(0)
    feature, weight = random.normal(size=300), random.normal(size=2_000)
    user, item = random.integers(0, 2_000, 40_000), random.integers(0, 300, 40_000)
    value = 3 + weight[user] * feature[item] / 2 + random.normal(size=40_000) / 2
    of = Ratings.from_columns(
        user, item, value, rating_range=(0.0, 6.0), duplicates="mean", out_of_range="clip"
    )
    new = of.item >= 280
    data = layout.make(of.take(np.flatnonzero(~new)), num_devices=1)
    z = gaussian.solve_noise_multiplier(1.0, 1e-5, 1)
    errors = []
    for features in (None, feature[:, None]):
        made = config(
            noise_multiplier=z,
            rating_range=(0.0, 6.0),
            num_features=int(features is not None),
            **MEANS,
        )
        *earlier, (last, num_steps) = als.phases(made, features)
        init_key, key = jax.random.split(keys.from_seed(0))
        state = protocol.begin(last, init_key, data, earlier)
        state, _ = protocol.train(last, key, state, data, num_steps)
        model = jax.device_get(protocol.factors(state))
        rows = model.user_factors[of.user[new]] * model.item_factors[of.item[new]]
        found = model.center[of.item[new]] + rows.sum(axis=1)
        errors.append(np.sqrt(np.mean((found - of.value[new]) ** 2)))
    means, known = errors
    assert known < 0.9 * means
    assert "features of the items are public" in str(last.guarantee(1))
    with pytest.raises(ValueError, match="num_features"):
        als.phases(config(num_features=2), feature[:, None])


@pytest.mark.seconds
def test_users_who_differ_in_what_they_make_of_popular_and_good_items_are_told_apart():
    """From noisy counts and means alone, at the same price: nothing more is sent."""
    random = np.random.default_rng(0)
    popularity, quality = random.normal(size=(2, 300))
    level, by_popularity, by_quality = random.normal(size=(3, 2_000)) * [[0.3], [0.3], [0.2]]
    user = np.repeat(np.arange(2_000), 40)
    weight = np.exp(popularity) / np.exp(popularity).sum()
    item = np.concatenate([random.choice(300, 40, replace=False, p=weight) for _ in range(2_000)])
    value = 3 + level[user] + 0.4 * quality[item] + 0.6 * random.normal(size=len(item))
    value += by_popularity[user] * popularity[item] + by_quality[user] * quality[item]
    of = Ratings.from_columns(user, item, value, rating_range=(1.0, 5.0), out_of_range="clip")
    train, test = splits.random(of, fraction=0.1, seed=0)
    data = layout.make(train, num_devices=1)
    errors, prices = [], []
    for slopes in (False, True):
        made = als.phases(config(noise_multiplier=0.5, slopes=slopes, slope_signal=0.05, **MEANS))
        model = measure.trained(made, tuple(map(keys.from_seed, (0, 1))), data, train)
        errors.append(metrics.rmse(model, test))
        prices.append(accounting.compose(*(one.guarantee(num) for one, num in made)))
    level_alone, sloped = errors
    assert sloped < 0.93 * level_alone
    assert prices[0] == prices[1]


def longer_at_first(query, params, state, data, coins):
    """The first pass has the clip of the last one."""
    clip = jnp.where(state.step == 0, params.clip[-1], params.clip[0])
    return query(dataclasses.replace(params, clip=clip[None]), state, data, coins)


def looks_at_its_key(params, key, data, previous):
    """The start of the factors, of which a word of the key is a part."""
    state = factor_passes.first_state(params, key, data, previous)
    word = jnp.float32(1e-9) * jnp.ravel(jax.random.key_data(key))[0]
    means = state.public.means
    center = means.center + word
    return state._replace(public=state.public._replace(means=means._replace(center=center)))


@pytest.mark.seconds
@pytest.mark.parametrize("planted", [False, True])
def test_no_key_is_used_twice(planted):
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    counts, means, (made, _), _ = als.phases(config(num_passes=1))
    if planted:
        made = made._replace(init=Partial(looks_at_its_key, *made.init.args))
    found = keys_used.audit(
        made, of, data, key=keys.from_seed(1), num_steps=1, earlier=(counts, means)
    )
    verdicts = {one.audit: one.verdict for one in found}
    assert verdicts["noise: keys"] == ("violated" if planted else "consistent")


@pytest.mark.seconds
@pytest.mark.parametrize("planted", [False, True])
def test_every_pass_is_held_to_its_own_clip(planted):
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    *earlier, (made, num_steps), _ = als.phases(config())
    if planted:
        query = made.query
        made = made._replace(query=Partial(partial(longer_at_first, query.func), *query.args))
    made = protocol.link((*earlier, (made, num_steps)), keys.from_seed(0), data)[-1]
    found = sensitivity.audit(
        made, of, data, key=keys.from_seed(1), num_steps=num_steps, num_neighbours=USERS
    )
    assert {one.verdict for one in found} == ({"violated"} if planted else {"consistent"})


def test_without_noise_and_clip_a_pass_sums_up_what_ridges_in_numpy_send():
    """Each user's ridge in floats, then Σ w·e·u of every item and Σ u·uᵀ: quarters of the width."""
    of, made = ratings(), config(residual_clip=50.0, factors_clip=5.0, gram_clip=5.0)
    data = layout.make(of, kind="dense", num_devices=1)
    phases = als.without_noise(als.phases(made))
    *_, (mechanism, public), _ = public_states(phases, data)
    params, items = mechanism.query.args[0], public.items
    center, factors = np.asarray(public.center, float), np.asarray(items.units * items.unit, float)
    variance = np.asarray(items.variance * items.unit**2, float)
    prior = np.diag([made.level_regularization, *[made.regularization] * made.rank])
    sums, gram = np.zeros((ITEMS, made.rank)), np.zeros((made.rank, made.rank))
    for user in range(USERS):
        rated = of.item[of.user == user]
        target = of.value[of.user == user] - center[rated]
        design = np.hstack([np.ones((len(rated), 1)), factors[rated]])
        left = design.T @ design / made.noise_variance + prior
        left[1:, 1:] += np.diag(variance[rated].sum(0)) / made.noise_variance
        answer = np.linalg.solve(left, design.T @ target / made.noise_variance)
        residual = target - design @ answer
        sums[rated] += np.outer(residual, answer[1:]) / max(len(rated), 1) ** 0.5
        gram += np.outer(answer[1:], answer[1:])
    found = statistics(mechanism, public, data)
    clip, further = np.asarray(params.clip[0], float)
    per_unit = float(params.message_clip) / clip, float(params.further_clip) / further
    assert np.abs(sums).max() > 0.2
    np.testing.assert_allclose(per_unit[0] * signed(found[0]), sums, atol=0.01)
    # each user's answer is rounded to units of this many squared
    rounding = (per_unit[1] * (np.diag(gram)[:, None] + np.diag(gram)) / 12) ** 0.5
    np.testing.assert_array_less(np.abs(per_unit[1] * signed(found[1]) - gram), 4 * rounding)
    assert rounding.max() < 0.02 * np.diag(gram).min()
