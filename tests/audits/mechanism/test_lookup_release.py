"""The lookup attack itself, from the public files of a release: with float32 noise it guesses most
ratings, with noise in whole numbers no more than ε allows.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import accounting
from audits.mechanism import lookup_tables
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import descent, whole_descent
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys, ring
from dpmf_jax.noise import laws as noise
from dpmf_jax.training import fit as fitting

pytestmark = pytest.mark.usefixtures("quick_compilation")


def one_rating_each(num: int, present=None) -> Ratings:
    """Every user gives one rating, 1 or 5; or 5, of those who are present."""
    random = np.random.default_rng(1)
    value = random.choice([1.0, 5.0], num).astype(np.float32)
    item, user = random.integers(0, 30, num), np.arange(num)
    if present is not None:
        user, item, value = user[present], item[present], np.full(int(present.sum()), 5, np.float32)
    return Ratings.from_columns(
        user,
        item,
        value,
        rating_range=(1.0, 5.0),
        name="one",
        users=np.arange(num),
        items=np.arange(30),
    )


def one_step(**settings) -> gaussian.Config:
    z = accounting.gaussian.solve_noise_multiplier(epsilon=0.1, delta=1e-5, num_steps=1)
    return gaussian.Config(
        rating_range=(1.0, 5.0),
        noise_multiplier=z,
        rank=1,
        learning_rate=0.25,
        center=3.0,
        residual_clip=2.0,
        regularization=0.0,
        **settings,
    )


ALLOWED = math.exp(0.1) / (1 + math.exp(0.1))  # of the guesses may be right: 52.5%


def _float_query(state, data, coins):
    users, items, center, _ = state.public
    return descent.user_gradient(users, items, center, jnp.float32(1), jnp.float32(2), data)


def _float_update(state, response, data):
    users = state.public.user_factors - 0.25 * response
    return state._replace(public=state.public._replace(user_factors=users))


@pytest.mark.seconds
def test_public_files_of_a_release_with_float_noise_tell_most_ratings():
    """ε = 0.1 for one rating's value allows 52.5% of the guesses to be right; float32 noise lets
    most be. So the attack that whole numbers are held to below is one that works.

    Each of 1,501 users gives one rating, 1 or 5. Known to everybody: the released user factors, σ
    (from z and Δ), the step size, that the factors began at 0. A factor is then -learning_rate
    times a response, whose noise is one of 2^23 floats: which rating can have made it?
    """
    ratings, config = one_rating_each(1_501), one_step()
    truth = ratings.value
    mechanism = gaussian.public_items(config)._replace(
        query=Partial(_float_query),
        noise=noise.gaussian(4.0 * config.noise_multiplier),
        update=Partial(_float_update),
    )
    released = np.asarray(fit_once(mechanism, ratings, seed=5))
    guessed = guesses(mechanism, ratings, released)
    decided = guessed != 0
    right = (guessed[decided] > 0) == (truth[decided] > 3)
    share = np.mean(np.where(decided, (guessed > 0) == (truth > 3), 0.5))
    assert share > 0.7 > ALLOWED + 5 / math.sqrt(len(truth))
    assert right.mean() > 0.95


def fit_once(mechanism, ratings, seed: int):
    """The user factors of one step, as `train` makes them."""
    data = layout.make(ratings, kind="auto", num_devices=1)
    init_key, train_key = jax.random.split(keys.from_seed(seed))
    state = mechanism.init(init_key, data, None)
    state, _ = protocol.train(mechanism, train_key, state, data, 1)
    return mechanism.release(state).user_factors[:, 0]


@pytest.mark.seconds
@pytest.mark.parametrize("relation", ["rating value", "rating presence"])
def test_public_files_of_a_release_tell_no_more_than_epsilon_allows(relation):
    """The same of 2,000 users, in whole numbers, for a rating's value and for its presence.

    Both data sets can have made every number that is released; and whoever guesses the likelier one
    is right no more often than ε = 0.1 allows, but for chance: one in a thousand, and the key is
    fixed.
    """
    num, config = 2_000, one_step(relation=relation)
    mechanism = gaussian.public_items(config)
    if relation == "rating value":
        ratings = one_rating_each(num)
        truth, worlds = ratings.value > 3, (np.float32(1), np.float32(5))
        pair = [dataclasses.replace(ratings, value=np.full(num, world)) for world in worlds]
    else:
        truth = np.random.default_rng(2).random(num) < 0.5
        ratings = one_rating_each(num, truth)
        pair = [one_rating_each(num, np.arange(num) == 0), one_rating_each(num, truth | True)]
    model = fitting.fit(ratings, mechanism, num_steps=1, seed=5, num_devices=1)
    assert model.guarantee.status == "proved"
    assert model.guarantee.epsilon <= 0.1001
    params = mechanism.query.args[0]
    unit = float(whole_descent.unit(params.grid))
    response = np.rint(np.asarray(model.release.user_factors, np.float64)[:, 0] / (-0.25 * unit))
    sums = []
    for world in pair:
        data = layout.make(world, kind="auto", num_devices=1)
        state = mechanism.init(keys.from_seed(5), data, None)
        sums.append(np.asarray(ring.signed(mechanism.query(state, data, None)[0]))[:, 0])
    sums[0] = (
        np.where(np.arange(num) == 0, 0, sums[0]) if relation == "rating presence" else sums[0]
    )
    away = [np.abs(response - one) for one in sums]
    law = mechanism.noise.sample.args[0]
    reach = float(law.stride) * 528 * 15 + 528
    assert all((far < reach).all() for far in away)
    right = np.mean((away[1] < away[0]) == truth)
    assert right <= ALLOWED + 3.1 * math.sqrt(0.25 / num)


def guesses(mechanism, ratings, released):
    """1, -1 or 0 of each user: a rating of 5, of 1, or undecided. By the program itself, on ratings
    that are not
    theirs: what it makes of every word where all users gave a 5, and where all gave a 1.
    """
    held = []
    for value in (1.0, 5.0):
        columns = (ratings.user, ratings.item, np.full(len(ratings.user), value, np.float32))
        world = Ratings.from_columns(
            *columns,
            rating_range=(1.0, 5.0),
            name="guess",
            users=ratings.users,
            items=ratings.items,
        )
        data = layout.make(world, kind="auto", num_devices=1)
        state = mechanism.init(keys.from_seed(0), data, None)
        statistics, _ = mechanism.query(state, data, mechanism.coins(keys.from_seed(0)))

        def released_column(key, state=state, statistics=statistics, data=data):
            response = mechanism.noise.sample(key, statistics)
            return mechanism.release(mechanism.update(state, response, data)).user_factors[:, 0]

        pieces = jax.lax.map(
            released_column, lookup_tables.every_word(ratings.num_users), batch_size=64
        )
        held.append(lookup_tables.counts([np.asarray(pieces).reshape(-1)], released, "value") > 0)
    return held[1].astype(int) - held[0]
