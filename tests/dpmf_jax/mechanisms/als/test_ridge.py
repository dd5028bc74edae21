"""Means from residuals of a local ridge: one rating moves them no further than itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import audits
from accounting import gaussian
from dpmf_jax import layout, parts, protocol
from dpmf_jax.data import synthetic
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms.als import public_ridge, ridge
from dpmf_jax.noise import keys
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

RANGE, ITEMS = (1.0, 5.0), 200
CONFIG = ridge.Config(rating_range=RANGE, noise_multiplier=1.5, num_items=ITEMS)
HALF = 1 << 13  # units in half of the range


def users(num_ratings, value, centers, rank=0):
    """One user of so many ratings among others, a layout, and a state with these public means.

    Factors are drawn: any may be public. They are as long as the grid has them.
    """
    item = np.arange(num_ratings)
    ratings = Ratings(
        np.zeros(num_ratings, np.int32),
        item.astype(np.int32),
        value.astype(np.float32),
        np.arange(2),
        np.arange(ITEMS),
        RANGE,
    )
    data = layout.make(ratings, kind="dense", num_devices=1)
    mechanism = ridge.mechanism(dataclasses.replace(CONFIG, rank=rank))
    state = mechanism.init(keys.from_seed(0), data, None)
    factors = np.random.default_rng(5).normal(size=(ITEMS, rank))
    longest = np.linalg.norm(factors, axis=1).max(initial=1.0)
    columns = public_ridge.columns(
        jnp.asarray(np.round(public_ridge.RADIUS / longest * factors), jnp.float32)
    )
    public = state.public._replace(
        units=jnp.asarray(centers, jnp.float32), columns=columns, factor_unit=jnp.float32(0.1)
    )
    return mechanism, data, state._replace(public=public)


@jax.jit
def ask(mechanism, state, data):
    """The sums of a pass, of users who answer to the state's means first."""
    private = ridge._private_answers(mechanism.query.args[0], state.public, data)
    return mechanism.query(state._replace(private=private), data, None)[0]


def sums(mechanism, state, data):
    return np.asarray(ask(mechanism, state, data)).view(np.int32).astype(np.float64)


@pytest.mark.parametrize("rank", [0, 3])
def test_residuals_are_those_of_a_ridge(rank):
    random = np.random.default_rng(0)
    value = random.integers(1, 6, 150)
    centers = random.integers(-4000, 4000, ITEMS)
    mechanism, data, state = users(150, value, centers, rank)
    own = (value - 3) * (1 << 12) - centers[:150]  # 2^14 units in a width of 4
    x = np.asarray(state.public.columns, np.float64)[:150]
    priors = [CONFIG.level_regularization * x[0, 0] ** 2, *[CONFIG.regularization / 0.1**2] * rank]
    expected = np.zeros(ITEMS)
    expected[:150] = own - x @ np.linalg.solve(x.T @ x + np.diag(priors), x.T @ own)
    np.testing.assert_allclose(sums(mechanism, state, data), expected, atol=3)


WORST = [(1, "high"), (2, "low"), (ITEMS, "high"), (ITEMS, "low"), (ITEMS, "mixed"), (50, "mixed")]


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize(("num_ratings", "kind"), WORST)
def test_one_rating_moves_all_residuals_no_further_than_the_bound(num_ratings, kind, rank):
    """Few and many ratings, at the extremes, against means that are as far off as they can be."""
    random = np.random.default_rng(num_ratings)
    value = {
        "high": np.full(num_ratings, 5.0),
        "low": np.full(num_ratings, 1.0),
        "mixed": random.uniform(1, 5, num_ratings),
    }[kind]
    moved = []
    for centers in (
        np.full(ITEMS, -HALF),
        np.full(ITEMS, HALF),
        random.integers(-HALF, HALF + 1, ITEMS),
    ):
        mechanism, data, state = users(num_ratings, value, centers, rank)
        bound = mechanism.guarantee(1).sensitivity
        for end in RANGE:
            other = layout.replace_value(data, layout.locate(data, 0, num_ratings - 1), end)
            moved.append(
                np.linalg.norm(sums(mechanism, state, data) - sums(mechanism, state, other))
            )
    assert max(moved) <= bound < 1.004 * 2 * HALF
    if kind != "mixed":  # the level takes a fifth of a single one, at λ = 4
        assert max(moved) > (0.25 if rank else 0.79) * bound  # drawn factors take more


def test_all_ratings_of_a_user_move_them_no_further_than_the_root_of_their_number():
    random = np.random.default_rng(0)
    centers = random.integers(-HALF, HALF + 1, ITEMS)
    for num_ratings in (1, 7, ITEMS):
        value = np.where(np.arange(num_ratings) % 2, 1.0, 5.0)
        found = []
        for chosen in (value, 6 - value):
            mechanism, data, state = users(num_ratings, chosen, centers, rank=3)
            found.append(sums(mechanism, state, data))
        guarantee = mechanism.guarantee(1)
        assert np.linalg.norm(found[0] - found[1]) <= guarantee.sensitivity * num_ratings**0.5
        assert guarantee.for_user(num_ratings).rho == pytest.approx(num_ratings * guarantee.rho)


def checked(gram, size, count, priors, width=2.0 * HALF, slack=1e9):
    """A of one user."""
    given = (jnp.asarray(part, jnp.int32)[None] for part in (gram, size))
    found = public_ridge._matrices(
        *given,
        jnp.float32(count)[None],
        jnp.asarray(priors, jnp.float32),
        jnp.float32(width),
        jnp.float32(slack),
        jnp.zeros(1, jnp.int32),
    )
    return np.asarray(found)[:, :, 0].astype(np.float64)


def level_alone(count, priors):
    expected = np.zeros((len(priors), len(priors)))
    expected[0, 0] = 1 / (public_ridge.LEVEL**2 * count + priors[0])
    return expected


def test_who_fails_a_check_has_a_level_alone_or_nothing():
    """Matrices that float32 inverts badly, roundings beyond the slack, sums beyond 31 bits."""
    random = np.random.default_rng(1)
    x = np.hstack([np.full((40, 1), 64), random.integers(-60, 60, (40, 3))])
    gram, size, priors = x.T @ x, np.abs(x).sum(axis=0), np.array([16384.0, 6000, 6000, 6000])
    good = checked(gram, size, 40, priors)
    np.testing.assert_array_equal(good, good.T)
    assert np.abs(good @ (gram + np.diag(priors)) - np.eye(4)).max() < 1e-4
    alone = level_alone(40, priors)
    for bad in (
        checked(gram, size, 40, priors, slack=5.0),
        checked(gram, size, public_ridge.MOST_OF_FEATURES + 1, priors),
        checked(gram, 10_000 * size, 40, priors),
    ):
        assert np.count_nonzero(bad) == 1
        assert bad[0, 0] <= 1.0001 * alone[0, 0]
    same = np.hstack([x[:, :2], x[:, 1:2], x[:, 1:2]])
    nearly = same.T @ same * 400
    singular = checked(nearly, size, 40, [1e-3, 1e-3, 1e-3, 1e-3])
    np.testing.assert_allclose(singular, level_alone(40, [1e-3] * 4), rtol=1e-6)
    assert not checked(gram, size, public_ridge.MOST + 1, priors).any()


@pytest.mark.parametrize("planted", [False, True])
def test_a_matrix_that_is_too_large_would_break_the_bound(planted, monkeypatch):
    """Five times the level is then taken from everything that is left."""
    as_it_is = public_ridge._matrices
    if planted:
        monkeypatch.setattr(public_ridge, "_matrices", lambda *given: 5 * as_it_is(*given))
    jax.clear_caches()
    mechanism, data, state = users(ITEMS, np.ones(ITEMS), np.zeros(ITEMS))
    other = layout.replace_value(data, layout.locate(data, 0, 0), 5.0)
    moved = np.linalg.norm(sums(mechanism, state, data) - sums(mechanism, state, other))
    assert (moved > mechanism.guarantee(1).sensitivity) == planted
    jax.clear_caches()


@pytest.mark.parametrize("planted", [False, True])
def test_answers_that_are_rounded_to_more_than_a_unit_would_break_the_bound(planted, monkeypatch):
    """Of 200 ratings one moves the level from below a rounding of 4,096 units to above it."""
    as_it_is = public_ridge.answers

    def coarse(*given):
        found = as_it_is(*given)
        wide = 4096 * (1 << public_ridge.FINE_BITS) // int(public_ridge.LEVEL)
        return found._replace(units=(found.units + wide // 2) // wide * wide)

    if planted:
        monkeypatch.setattr(public_ridge, "answers", coarse)
    jax.clear_caches()
    mechanism, data, state = users(ITEMS, np.full(ITEMS, 3.0), np.full(ITEMS, -2060.0))
    other = layout.replace_value(data, layout.locate(data, 0, 0), 5.0)
    moved = np.linalg.norm(sums(mechanism, state, data) - sums(mechanism, state, other))
    assert (moved > mechanism.guarantee(1).sensitivity) == planted
    jax.clear_caches()


def test_the_price_is_what_was_asked_for_and_said_to_be_joint():
    z = gaussian.solve_noise_multiplier(1.0, 1e-5, 3, price="exact")
    config = dataclasses.replace(CONFIG, noise_multiplier=z, num_items=10_000)
    guarantee = ridge.mechanism(config).guarantee(3)
    assert 0.999 < guarantee.accountants["exact"] <= guarantee.epsilon <= 1.0
    assert guarantee.accountants["pld"] == pytest.approx(1.0, abs=0.01)  # dp-accounting's
    assert (guarantee.unit, guarantee.status) == ("rating value", "proved")
    assert guarantee.largest_change == 4.0
    assert "joint" in str(guarantee)


@pytest.mark.seconds
def test_it_keeps_to_the_protocol_and_its_claims_survive():
    ratings = share(0.6, (12, 7))
    mechanism = ridge.mechanism(dataclasses.replace(CONFIG, num_items=7))
    parts.check([(mechanism, 2)], layout.make(ratings, num_devices=1))
    found = audits.audit(
        mechanism,
        ratings,
        key=keys.from_seed(0),
        num_steps=2,
        quick=True,
        only=["sensitivity", "post-processing", "noise", "density", "lookup", "privacy loss"],
    )
    verdicts = {finding.audit: finding.verdict for finding in found}
    assert set(verdicts.values()) <= {"consistent", "not applicable"}, verdicts
    assert verdicts["sensitivity: largest step"] == "consistent"


def test_it_learns_means_and_levels_and_releases_the_means_alone():
    of = synthetic.generate(num_users=400, num_items=60, num_ratings=12_000, rank=2, seed=1)
    data = layout.make(of, num_devices=1)
    config = ridge.Config(rating_range=of.rating_range, noise_multiplier=0.5, num_items=60, rank=2)
    mechanism = ridge.mechanism(config)
    init_key, key = jax.random.split(keys.from_seed(0))
    state = protocol.begin(mechanism, init_key, data)
    state, info = protocol.train(mechanism, key, state, data, 3)
    assert info.loss[-1] < 0.9 * info.loss[0]  # of what follows from no means
    release = mechanism.release(state)
    assert release.user_factors is None
    mean = np.bincount(of.item, of.value) / np.bincount(of.item)
    assert np.corrcoef(mean, release.center)[0, 1] > 0.9
    # a user's level follows from the release and the own ratings, in any company
    for some in (of, of.take(np.flatnonzero(of.user < 3))):
        levels = ridge.fold_in(config, release, some)
        there = np.unique(some.user)
        np.testing.assert_array_equal(levels[there], state.private.user_factors[there])
    own = np.bincount(of.user, of.value) / np.bincount(of.user)
    assert np.corrcoef(own, state.private.user_factors[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize("num_items", [ITEMS, 5_000_000])
def test_the_grid_fits_the_noise(num_items):
    for z in (0.3, 6.5, 300.0):
        config = dataclasses.replace(CONFIG, noise_multiplier=z, num_items=num_items)
        try:
            units, bound = ridge._units(config)
        except PrivacyError:
            assert (num_items, z) == (5_000_000, 300.0)
            continue
        assert bound * z <= ridge.whole.LARGEST
        assert units <= public_ridge.WIDEST
        assert bound >= units + 1.5 * num_items**0.5  # of a level alone, `public_ridge`
    with pytest.raises(PrivacyError, match="too large"):
        ridge.mechanism(dataclasses.replace(CONFIG, noise_multiplier=1e4))


def test_factors_are_left_out_where_users_have_few_ratings():
    of = synthetic.generate(num_users=60, num_items=40, num_ratings=600, rank=2, seed=1)
    data = layout.make(of, num_devices=1)
    for least, learned in ((9.9, True), (10.1, False)):
        config = dataclasses.replace(CONFIG, num_items=40, rank=2, least_ratings=least)
        mechanism = ridge.mechanism(config)
        state = jax.jit(mechanism.init)(keys.from_seed(0), data, None)
        release = mechanism.release(state)
        assert np.asarray(release.item_factors)[:, 1:].any() == learned
        assert np.asarray(state.private.user_factors)[:, 1:].any() == learned
        assert np.asarray(state.private.user_factors)[:, 0].any()
