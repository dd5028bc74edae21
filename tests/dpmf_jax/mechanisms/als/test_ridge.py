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
from dpmf_jax.mechanisms.als import ridge
from dpmf_jax.noise import keys
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

RANGE, ITEMS = (1.0, 5.0), 200
CONFIG = ridge.Config(rating_range=RANGE, noise_multiplier=1.5, num_items=ITEMS)


def users(num_ratings, value, centers):
    """One user of so many ratings among others, a layout, and a state with these public means."""
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
    mechanism = ridge.mechanism(CONFIG)
    state = mechanism.init(keys.from_seed(0), data, None)
    return mechanism, data, state._replace(public=state.public._replace(units=centers))


@jax.jit
def ask(mechanism, state, data):
    """The sums of a pass, of users who answer to the state's means first."""
    private = ridge._levels(mechanism.query.args[0], state.public.units, data)
    return mechanism.query(state._replace(private=private), data, None)[0]


def sums(mechanism, state, data):
    return np.asarray(ask(mechanism, state, data)).view(np.int32).astype(np.float64)


def test_residuals_are_those_of_a_ridge_in_whole_units():
    random = np.random.default_rng(0)
    value = random.integers(1, 6, 150)
    centers = jnp.asarray(random.integers(-4000, 4000, ITEMS), jnp.float32)
    mechanism, data, state = users(150, value, centers)
    steps = (value - 3) * (1 << 12) - np.asarray(centers)[:150]  # 2^14 units in a width of 4
    level = np.round(steps.sum() / (150 + CONFIG.level_regularization))
    expected = np.zeros(ITEMS)
    expected[:150] = steps - level
    np.testing.assert_array_equal(sums(mechanism, state, data), expected)


WORST = [(1, "high"), (2, "low"), (ITEMS, "high"), (ITEMS, "low"), (ITEMS, "mixed"), (50, "mixed")]


@pytest.mark.parametrize(("num_ratings", "kind"), WORST)
def test_one_rating_moves_all_residuals_no_further_than_the_bound(num_ratings, kind):
    """Few and many ratings, at the extremes, against means that are as far off as they can be."""
    random = np.random.default_rng(num_ratings)
    value = {
        "high": np.full(num_ratings, 5.0),
        "low": np.full(num_ratings, 1.0),
        "mixed": random.uniform(1, 5, num_ratings),
    }[kind]
    moved = []
    for centers in (
        np.full(ITEMS, -8192.0),
        np.full(ITEMS, 8192.0),
        random.integers(-8192, 8193, ITEMS),
    ):
        mechanism, data, state = users(num_ratings, value, jnp.asarray(centers, jnp.float32))
        bound = mechanism.guarantee(1).sensitivity
        for end in RANGE:
            other = layout.replace_value(data, layout.locate(data, 0, num_ratings - 1), end)
            moved.append(
                np.linalg.norm(sums(mechanism, state, data) - sums(mechanism, state, other))
            )
    assert max(moved) <= bound < 1.001 * (1 << 14)
    if kind != "mixed":  # the level takes a fifth of a single one, at λ = 4
        assert max(moved) > 0.79 * bound


def test_all_ratings_of_a_user_move_them_no_further_than_the_root_of_their_number():
    random = np.random.default_rng(0)
    centers = jnp.asarray(random.integers(-8192, 8193, ITEMS), jnp.float32)
    for num_ratings in (1, 7, ITEMS):
        value = np.where(np.arange(num_ratings) % 2, 1.0, 5.0)
        found = []
        for chosen in (value, 6 - value):
            mechanism, data, state = users(num_ratings, chosen, centers)
            found.append(sums(mechanism, state, data))
        guarantee = mechanism.guarantee(1)
        assert np.linalg.norm(found[0] - found[1]) <= guarantee.sensitivity * num_ratings**0.5
        assert guarantee.for_user(num_ratings).rho == pytest.approx(num_ratings * guarantee.rho)


@pytest.mark.parametrize("planted", [False, True])
def test_levels_that_are_rounded_to_more_than_a_unit_would_break_the_bound(planted, monkeypatch):
    """Of 200 ratings one moves the level from below a rounding of 4,096 units to above it."""
    as_it_is = ridge._levels

    def coarse(params, centers, data):
        level = jnp.round(as_it_is(params, centers, data).level / 4096) * 4096
        return ridge.Private(level[:, None], level)

    if planted:
        monkeypatch.setattr(ridge, "_levels", coarse)
    jax.clear_caches()
    mechanism, data, state = users(ITEMS, np.full(ITEMS, 3.0), jnp.full(ITEMS, -2060.0))
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
    config = ridge.Config(rating_range=of.rating_range, noise_multiplier=0.5, num_items=60)
    mechanism = ridge.mechanism(config)
    init_key, key = jax.random.split(keys.from_seed(0))
    state = protocol.begin(mechanism, init_key, data)
    state, info = protocol.train(mechanism, key, state, data, 3)
    assert info.loss[-1] < 0.9 * info.loss[0]  # of levels alone
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
def test_the_grid_fits_the_noise_and_the_sums(num_items):
    for z in (0.3, 6.5, 300.0):
        config = dataclasses.replace(CONFIG, noise_multiplier=z, num_items=num_items)
        try:
            units, bound = ridge._units(config)
        except PrivacyError:
            assert num_items > 1_000_000
            continue
        assert bound * z <= ridge.whole.LARGEST
        assert units * num_items < 2**31
        assert bound >= units + ridge.ROUNDED
    with pytest.raises(PrivacyError, match="too large"):
        ridge.mechanism(dataclasses.replace(CONFIG, noise_multiplier=1e4))
