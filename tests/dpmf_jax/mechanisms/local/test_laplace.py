"""Hua et al.'s way per user: sensitivity by coupling, the law of the noise, plain descent without
it, the price.
"""

import dataclasses
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import audits
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import laplace as local_laplace
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from tests.cases.audits import STRUCTURAL
from tests.cases.ratings import tiny

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK = 14, 6, 3
ALPHA = 1e-4


RATINGS = tiny()


def config(**settings) -> local_laplace.Config:
    defaults = {
        "epsilon": 1.0,
        "num_rounds": 4,
        "num_items": ITEMS,
        "rank": RANK,
        "learning_rate": 0.3,
        "center": 3.0,
    }
    return local_laplace.Config(**(defaults | settings))


def laplace_mechanism(**settings):
    return local_laplace.mechanism(config(**settings))


@pytest.fixture(scope="module", params=["dense", "split"])
def data(request):
    return layout.make(RATINGS, kind=request.param, num_devices=1)


def begun(mechanism, data):
    return protocol.begin(mechanism, keys.from_seed(0), data)


def gradients(users, items) -> np.ndarray:
    """∇V of every user by the printed formula, [users, items, rank]."""
    out = np.zeros((USERS, ITEMS, RANK))
    for user, item, value in zip(RATINGS.user, RATINGS.item, RATINGS.value, strict=True):
        out[user, item] = -2 * users[user] * (value - 3.0 - users[user] @ items[item])
    return out


@pytest.mark.parametrize("clip", [0.4, 1.0, 50.0])
def test_a_message_is_the_users_own_clipped_gradient(data, clip):
    mechanism = laplace_mechanism(clip=clip)
    state = begun(mechanism, data)
    sent, info = mechanism.query(state, data, keys.from_seed(1))
    users, items = np.asarray(state.private.user_factors), np.asarray(state.public.item_factors)
    whole = gradients(users, items)
    np.testing.assert_allclose(sent, np.clip(whole, -clip, clip), atol=1e-5)
    assert float(info.clipped_fraction) == pytest.approx(np.sum(np.abs(whole) > clip) / (50 * RANK))
    error = [
        v - 3 - users[u] @ items[i]
        for u, i, v in zip(RATINGS.user, RATINGS.item, RATINGS.value, strict=True)
    ]
    assert float(info.loss) == pytest.approx(np.mean(np.square(error)), rel=1e-5)


def test_any_change_of_a_users_ratings_moves_a_row_by_no_more_than_is_priced(data):
    """The two worlds follow one transcript; every rating of user 3 changes as far as it can,
    clipped everywhere.
    """
    far = dataclasses.replace(
        RATINGS, value=np.where(RATINGS.user == 3, 1e4, RATINGS.value).astype(np.float32)
    )
    other = dataclasses.replace(
        RATINGS, value=np.where(RATINGS.user == 3, -1e4, RATINGS.value).astype(np.float32)
    )
    worlds = tuple(layout.make(r, kind=data.kind, num_devices=1) for r in (far, other))
    mechanism = laplace_mechanism(clip=0.25)
    states = tuple(begun(mechanism, world) for world in worlds)
    _, moved, _ = protocol.train_coupled(
        mechanism, keys.from_seed(2), states, worlds, 3, row_distances
    )
    moved = np.asarray(moved)  # [rounds, users, items]
    assert moved.max() <= 2 * RANK * 0.25 * (1 + 1e-6)
    rated = set(RATINGS.item[RATINGS.user == 3])
    assert moved[0, 3, sorted(rated)] == pytest.approx(2 * RANK * 0.25)  # the bound is met
    assert np.all(np.delete(moved, 3, axis=1) == 0)
    row_epsilon = 2 * RANK * 0.25 / float(mechanism.noise.sample.args[0])
    assert row_epsilon * ITEMS * 4 == pytest.approx(1.0, rel=1e-6)
    assert Fraction(row_epsilon) * ITEMS * 4 <= 1


def row_distances(response, statistics, other):
    del response
    return jnp.sum(jnp.abs(statistics - other), axis=-1)


def test_the_loss_of_a_round_is_at_most_its_share():
    """log_ratio of two worlds of one user that differ at all rows by all they can: ε/k, reached far
    from both.
    """
    mechanism = laplace_mechanism()
    here, there = jnp.full((1, ITEMS, RANK), 1.0), jnp.full((1, ITEMS, RANK), -1.0)
    far = jnp.full((1, ITEMS, RANK), 1e7)
    losses = [float(mechanism.noise.log_ratio(r, here, there)) for r in (far, -far, here, there)]
    assert losses == pytest.approx([0.25, -0.25, 0.25, -0.25], rel=1e-6)
    drawn = jax.vmap(
        lambda key: mechanism.noise.log_ratio(mechanism.noise.sample(key, here), here, there)
    )
    assert np.abs(drawn(jax.random.split(keys.from_seed(0), 2000))).max() <= 0.25 * (1 + 1e-6)


@pytest.mark.parametrize(
    "settings",
    [{}, {"clip": 0.1}, {"num_rounds": 7, "rank": 1}, *({"epsilon": 0.1 * i} for i in range(1, 9))],
)
def test_the_scale_is_that_of_the_guarantee_and_rounded_up(settings):
    chosen = config(**settings)
    exact = 2 * chosen.rank * Fraction(float(np.float32(chosen.clip))) * chosen.num_rounds * ITEMS
    exact /= Fraction(chosen.epsilon)
    scale = np.float32(local_laplace.scale(chosen))
    assert Fraction(float(scale)) >= exact
    assert Fraction(float(np.nextafter(scale, np.float32(0)))) < exact
    assert float(local_laplace.mechanism(chosen).noise.sample.args[0]) == scale


def test_the_noise_has_the_promised_law(data):
    """Kolmogorov-Smirnov at 1e-4 each: the promised scale is accepted, two thirds and three halves
    of it are not.
    """
    mechanism = laplace_mechanism()
    state = begun(mechanism, data)
    statistics, _ = mechanism.query(state, data, keys.from_seed(1))
    drawn = jax.vmap(mechanism.noise.sample, (0, None))(
        jax.random.split(keys.from_seed(3), 40), statistics
    )
    added = np.asarray(drawn - statistics, np.float64).ravel()
    scale = 2 * RANK * 4 * ITEMS
    for factor, accepted in ((1.0, True), (2 / 3, False), (1.5, False)):
        assert (
            scipy.stats.kstest(added, "laplace", (0, factor * scale)).pvalue > ALPHA
        ) == accepted
    rows = added.reshape(40, -1)
    correlation = np.corrcoef(rows.T)[np.triu_indices(rows.shape[1], 1)]
    assert np.abs(correlation).max() < 0.95  # no two entries share a draw
    assert np.abs(np.corrcoef(rows)[np.triu_indices(40, 1)]).max() < 0.4  # nor two rounds


@pytest.mark.parametrize("scale", [0.5, 1e4])
def test_log_prob_is_the_density_and_log_ratio_its_difference(scale):
    made = noise.laplace(scale)
    random = np.random.default_rng(0)
    q, q_, r = (
        jnp.float32(scale) * random.standard_normal((50, 2)).astype(np.float32) for _ in range(3)
    )
    expected = [scipy.stats.laplace.logpdf(r, loc=at, scale=scale).sum() for at in (q, q_)]
    assert float(made.log_prob(r, q)) == pytest.approx(expected[0], rel=1e-5)
    assert float(made.log_ratio(r, q, q_)) == pytest.approx(
        expected[0] - expected[1], rel=1e-4, abs=1e-4
    )
    assert float(made.log_ratio(r, q, q)) == 0
    near = q + np.float32(scale * 1e-3)
    assert float(made.log_ratio(r + 1000 * scale, q, near)) == pytest.approx(
        -0.1, rel=1e-2
    )  # does not drown


def test_without_noise_it_is_plain_descent(data):
    """Rounds of the mean gradient of all users, γ/t, then the users' own step at the new V."""
    mechanism = laplace_mechanism(clip=100.0)._replace(noise=noise.none())
    state = begun(mechanism, data)
    users = np.asarray(state.private.user_factors, np.float64)
    items = np.asarray(state.public.item_factors, np.float64)
    after, info = protocol.train(mechanism, keys.from_seed(4), state, data, 3)
    for t in (1, 2, 3):
        items = items - 0.3 / t * (gradients(users, items).mean(0) + 2e-8 * items)
        new = users.copy()
        for user in range(USERS - 1):
            own = np.flatnonzero(RATINGS.user == user)
            rated = items[RATINGS.item[own]]
            error = RATINGS.value[own] - 3.0 - rated @ users[user]
            new[user] -= 0.3 / t * (-2 * error @ rated / max(len(own), 1) + 2e-8 * users[user])
        users = new
    np.testing.assert_allclose(after.public.item_factors, items, atol=1e-4)
    np.testing.assert_allclose(after.private.user_factors, users, atol=1e-4)
    assert info.loss[-1] < info.loss[0]


@pytest.mark.seconds
def test_chunks_equal_the_whole(data):
    mechanism = laplace_mechanism()
    state, key = begun(mechanism, data), keys.from_seed(2)
    whole, _ = protocol.train(mechanism, key, state, data, 4)
    first, _ = protocol.train(mechanism, key, state, data, 1)
    second, _ = protocol.train(mechanism, key, first, data, 3)
    jax.tree.map(np.testing.assert_array_equal, whole, second)


def test_nothing_but_the_item_factors_is_released(data):
    mechanism = laplace_mechanism()
    released = mechanism.release(begun(mechanism, data))
    assert released.user_factors is None
    assert released.item_factors is not None


def test_a_sweep_over_epsilon_compiles_once(data):
    key = keys.from_seed(0)
    protocol.train(laplace_mechanism(), key, begun(laplace_mechanism(), data), data, 2)
    before = protocol.train._cache_size()
    protocol.train(
        laplace_mechanism(epsilon=0.3, clip=2.0, learning_rate=0.1),
        key,
        begun(laplace_mechanism(), data),
        data,
        2,
    )
    assert protocol.train._cache_size() == before


@pytest.mark.seconds
def test_the_structural_audits_find_nothing():
    found = audits.audit(
        laplace_mechanism(),
        RATINGS,
        key=keys.from_seed(0),
        num_steps=4,
        only=STRUCTURAL,
        quick=True,
        num_neighbours=4,
    )
    by_name = {finding.audit: finding.verdict for finding in found}
    assert "violated" not in by_name.values(), by_name
    for name in ("release", "post-processing", "density: log_ratio", "density: sampler"):
        assert by_name[name] == "consistent", by_name


@pytest.mark.parametrize("num_rounds", [1, 3, 7])
def test_the_guarantee_is_epsilon_of_a_user(num_rounds):
    guarantee = laplace_mechanism(epsilon=0.3, num_rounds=num_rounds).guarantee(num_rounds)
    assert (guarantee.epsilon, guarantee.delta, guarantee.unit, guarantee.status) == (
        0.3,
        0,
        "user",
        "proved for real-number noise",
    )
    assert guarantee.steps == num_rounds
    assert (
        guarantee.relation
        == local.gd(local.Config(epsilon=1.0, num_rounds=1)).guarantee(1).relation
    )
    assert "local" in guarantee.trust_model
    assert guarantee.released == (
        "item factors",
        "every message: a noisy matrix of items x rank of each user in each round",
    )
    more = laplace_mechanism(epsilon=0.3, num_rounds=num_rounds).guarantee(2 * num_rounds)
    assert more.epsilon == pytest.approx(0.6)


def test_the_noise_in_the_mean_is_what_is_stated_beside_one_bit(data):
    """Of one entry: 8(d·c·m·k/ε)²/n here; m·d·(2c·k/ε)²/n for one bit at small ε."""
    from dpmf_jax.mechanisms.local import variance

    scale = local_laplace.scale(config())
    here = 2 * scale**2 / USERS
    assert here == pytest.approx(8 * (RANK * ITEMS * 4) ** 2 / USERS)
    one_bit = variance.step_variance(
        local.Config(epsilon=1.0, num_rounds=4, rank=RANK), num_users=USERS, num_items=ITEMS
    )
    assert here / one_bit == pytest.approx(2 * ITEMS * RANK, rel=0.02)


def test_too_large_messages_are_refused_with_a_fix():
    many = 60_000
    users = np.arange(many, dtype=np.int32)
    ratings = Ratings(
        users,
        (users % 1000).astype(np.int32),
        np.full(many, 3, np.float32),
        users,
        np.arange(1000),
        (1, 5),
    )
    data = layout.make(ratings, kind="split", num_devices=1)
    with pytest.raises(UsageError, match=r"take 3\.4 GiB; at most 2 GiB") as refused:
        protocol.begin(laplace_mechanism(num_items=1000, rank=15), keys.from_seed(0), data)
    assert "local.gd" in refused.value.fix


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1e-40}, "no scale of its noise"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"num_items": 0}, "num_items"),
        ({"rank": 0}, "rank"),
        ({"clip": -1.0}, "clip"),
        ({"center": math.inf}, "center"),
    ],
)
def test_refusals(bad, told):
    with pytest.raises(ValueError, match=told):
        config(**bad)


def test_data_of_another_catalogue_are_refused(data):
    with pytest.raises(ValueError, match="num_items must be 6"):
        begun(laplace_mechanism(num_items=7), data)
