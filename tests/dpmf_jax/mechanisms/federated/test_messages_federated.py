"""The messages make the sums that `federated` is about, and fifty iterations of S3 by messages
learn as it does.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.federated import crowd, roles
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.federated.messages import Ask, Own
from dpmf_jax.noise import ring

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK = 24, 6, 3
STEP = 2.0**-12
CROWD = federated.Population(join=0.3, leave=0.1, at_most=12)
iterate = jax.jit(roles.iteration)


def rank_one() -> Ratings:
    """About half of the pairs, of rank one and some noise; the last item has no ratings."""
    random = np.random.default_rng(0)
    taste, quality = random.normal(size=USERS), random.normal(size=ITEMS)
    user, item = np.nonzero(random.random((USERS, ITEMS - 1)) < 0.6)
    value = np.clip(
        np.rint(3 + taste[user] * quality[item] + 0.3 * random.normal(size=user.size)), 1, 5
    )
    columns = user.astype(np.int32), item.astype(np.int32), value.astype(np.float32)
    return Ratings(*columns, np.arange(USERS), np.arange(ITEMS), (1.0, 5.0))


RATINGS = rank_one()


def devices(whole_catalogue: bool) -> tuple[Own, Ask]:
    """Every user's own ratings, in a list of the rated items, padded, or of the whole catalogue; no
    factors yet.
    """
    counts = np.bincount(RATINGS.user, minlength=USERS)
    width = ITEMS if whole_catalogue else int(counts.max())
    items = np.full((USERS, width), ITEMS, np.int32)
    values, rated = np.zeros((USERS, width), np.float32), np.zeros((USERS, width), bool)
    if whole_catalogue:
        items[:] = np.arange(ITEMS)
    filled = np.zeros(USERS, int)
    for i, j, r in zip(RATINGS.user, RATINGS.item, RATINGS.value, strict=True):
        place = j if whole_catalogue else filled[i]
        items[i, place], values[i, place], rated[i, place] = j, r, True
        filled[i] += 1
    return Own(jnp.zeros((USERS, RANK)), jnp.asarray(values), jnp.asarray(rated)), Ask(
        jnp.asarray(items)
    )


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, num_devices=1)


def config(**settings) -> federated.Config:
    defaults = {
        "epsilon": 40.0,
        "rating_range": (1.0, 5.0),
        "rank": RANK,
        "center": 3.0,
        "prior_count": 100,
    }
    return federated.Config(**(defaults | settings))


def begun(made, data):
    """A state whose factors are multiples of 1/4: then sums are exact, whatever their order."""
    state, random = protocol.begin(made, jax.random.key(0), data), np.random.default_rng(1)
    items, users = (
        jnp.asarray(random.integers(-4, 5, (rows, RANK)) / 4, jnp.float32)
        for rows in (ITEMS, USERS)
    )
    return state._replace(
        public=state.public._replace(item_factors=items),
        private=state.private._replace(user_factors=users),
    )


def by_messages(state, rules, here, *, whole_catalogue=False):
    own, listed = devices(whole_catalogue)
    return iterate(
        jax.random.key(7),
        rules,
        own._replace(factors=state.private.user_factors),
        listed,
        state.public.item_factors,
        jnp.zeros((ITEMS, RANK), jnp.uint32),
        here,
        here,
        jnp.int32(1),
    )[0]


@pytest.mark.one_case
@pytest.mark.parametrize("population", [None, CROWD])
def test_without_noise_the_opened_sum_is_the_query_of_federated(data, population):
    made = federated.non_private(config(population=population))
    state = begun(made, data)
    for seed in range(3):
        statistics, _info = made.query(state, data, made.coins(jax.random.key(seed)))
        here = jnp.ones(USERS, bool) if population is None else statistics.crowd == crowd.TAKES_PART
        opened = by_messages(state, roles.without_noise(step=STEP, center=3.0), here)
        np.testing.assert_array_equal(ring.decode(opened.sums, STEP), statistics.secret)
        np.testing.assert_array_equal(opened.counts, statistics.count)
        if population is not None:
            state = state._replace(public=state.public._replace(crowd=statistics.crowd))
            assert 0 < np.sum(here) <= 12 or seed == 0


@pytest.mark.seconds
@pytest.mark.parametrize("clip_norm", [1000.0, 3.0])
def test_without_noise_the_opened_sum_is_that_of_federated_per_user(data, clip_norm):
    """The same elements of the ring; where messages are clipped, up to the hair inside C, and a
    step each.
    """
    made = federated.per_user(config(clip_norm=clip_norm, rounding_step=STEP, num_iterations=1))
    state = begun(made, data)
    statistics, info = made.query(state, data, made.coins(jax.random.key(0)))
    rules = roles.without_noise(step=STEP, center=3.0, clip_norm=clip_norm)
    opened = by_messages(state, rules, jnp.ones(USERS, bool), whole_catalogue=True)
    assert np.all(opened.counts == USERS)
    assert (float(info.clipped_fraction) > 0.3) == (clip_norm == 3.0)
    apart = np.abs(np.asarray(ring.signed(opened.sums - statistics.secret)))
    assert np.all(apart <= (0 if clip_norm == 1000.0 else USERS * (2 + 1e-4 * 3.0 / STEP)))
    assert np.max(np.abs(ring.signed(opened.sums))) > 1000


# ------------------------------------------------------------------------------------------- S3, fi


@partial(jax.jit, static_argnames="num_steps")
def simulate(
    key, made, rules, state, data, own, listed, alpha, tau_hat, arrival, at_least, num_steps
):
    """S3: who is online, who drops out, the messages, and federated's own update of what they
    opened.
    """

    def step(state, key):
        coins_key, drop_key, factor_key, message_key = jax.random.split(key, 4)
        statistics, info = made.query(state, data, made.coins(coins_key))
        asked = statistics.crowd == crowd.TAKES_PART
        arrived = asked & jax.random.bernoulli(drop_key, arrival, (USERS,))
        factor = roles.draw_factor(factor_key, ITEMS, RANK)
        mine = own._replace(factors=state.private.user_factors)
        everything = (message_key, mine, listed, state.public.item_factors, asked, arrived)

        def opened_by(rules, alpha, tau_hat):
            key, mine, listed, items, asked, arrived = everything
            return roles.iteration(
                key,
                rules,
                mine,
                listed,
                items,
                alpha,
                asked,
                arrived,
                at_least,
                tau_hat=tau_hat,
                factor=factor,
            )

        opened, _sent = opened_by(rules, alpha, tau_hat)
        plain, _sent = opened_by(
            roles.without_noise(step=STEP, center=3.0), jnp.zeros_like(alpha), None
        )
        present = jnp.where(asked & ~arrived, crowd.ONLINE, statistics.crowd)
        response = crowd.Sums(
            ring.decode(opened.sums, STEP), opened.counts.astype(jnp.float32), present
        )
        after = made.update(state, response, data)._replace(step=state.step + 1)
        seen = {
            "opened": opened.opened,
            "counts": opened.counts,
            "asked": (
                jnp.zeros(ITEMS, jnp.int32)
                .at[listed.items]
                .add(asked[:, None].astype(jnp.int32), mode="drop")
            ),
            "noise": opened.sums - plain.sums,
            "factor": factor,
            "loss": info.loss,
        }
        return after, seen

    return jax.lax.scan(step, state, jax.random.split(key, num_steps))


@partial(jax.jit, static_argnames="num_steps")
def without_messages(key, made, state, data, num_steps):
    """The mechanism's own iterations, with the crowds of `simulate`."""

    def step(state, key):
        statistics, info = made.query(state, data, made.coins(jax.random.split(key, 4)[0]))
        return made.update(state, statistics, data)._replace(step=state.step + 1), info.loss

    return jax.lax.scan(step, state, jax.random.split(key, num_steps))


def start(made, data):
    state = protocol.begin(made, jax.random.key(3), data)
    return state, *devices(whole_catalogue=False)


@pytest.mark.seconds
def test_fifty_iterations_of_s3_by_messages_learn_what_the_mechanism_without_noise_does(data):
    """Nobody drops out, no noise but α, pads and pieces: the same crowd, the same loss in every
    iteration, and the same factors, but for what rounding to the grid does.
    """
    made = federated.non_private(config(population=CROWD))
    state, own, listed = start(made, data)
    alpha = roles.draw_alpha(jax.random.key(1), ITEMS, RANK)
    rules = roles.without_noise(step=STEP, center=3.0)
    after, seen = simulate(
        jax.random.key(2), made, rules, state, data, own, listed, alpha, alpha, 1.0, 1, 50
    )
    np.testing.assert_array_equal(seen["noise"], 0)
    loss = np.asarray(seen["loss"])
    assert loss[-1] < 0.75 * loss[0]
    expected, its_loss = without_messages(jax.random.key(2), made, state, data, 50)
    np.testing.assert_allclose(loss, its_loss, rtol=5e-3)
    np.testing.assert_allclose(after.public.item_factors, expected.public.item_factors, atol=5e-3)
    # the item without ratings stays closed and where it is
    assert not np.any(np.asarray(seen["opened"])[:, -1])
    np.testing.assert_array_equal(after.public.item_factors[-1], state.public.item_factors[-1])


@pytest.mark.seconds
def test_fifty_iterations_of_s3_have_one_eta_and_fresh_noise_whoever_drops_out(data):
    """ε = 40, a fifth of the uploads lost: opened − plain − η is (12) of those who arrived, given H
    Gaussian.
    """
    settings = config(population=CROWD)
    made = federated.non_private(settings)
    state, own, listed = start(made, data)
    alpha = roles.draw_alpha(jax.random.key(1), ITEMS, RANK)
    scale = settings.published_scale
    rules = roles.published(scale=scale, step=STEP, center=3.0)
    first = roles.draw_factor(jax.random.key(8), ITEMS, RANK)
    started, sent = jax.jit(roles.initialise)(
        jax.random.key(9), rules, alpha, jnp.ones(4, bool), jnp.int32(4), factor=first
    )
    eta = np.asarray(ring.signed(started.sums - alpha))
    shares = np.asarray(ring.signed(sent.uploads.masked - sent.requests.pads))
    np.testing.assert_array_equal(eta, shares.sum(axis=0))
    after, seen = simulate(
        jax.random.key(2), made, rules, state, data, own, listed, alpha, started.sums, 0.8, 2, 50
    )
    opened = np.asarray(seen["opened"])
    assert 50 < opened.sum() < 50 * (ITEMS - 1)
    assert np.any(np.asarray(seen["counts"] < seen["asked"])[opened])
    assert not np.any(np.asarray(seen["noise"])[~opened])
    fresh = np.asarray(ring.signed(seen["noise"])).astype(np.float64) - eta
    arrived_share = np.asarray(seen["counts"] / jnp.maximum(seen["asked"], 1))[..., None]
    deviation = scale * np.sqrt(2 * np.asarray(seen["factor"]) * arrived_share) / STEP
    standard = (fresh / np.where(opened[..., None], deviation, 1))[opened]
    assert scipy.stats.kstest(standard.ravel(), scipy.stats.norm.cdf).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert scipy.stats.kstest(standard.ravel() * wrong, scipy.stats.norm.cdf).pvalue < 1e-4
    assert np.all(np.isfinite(after.public.item_factors))
    assert np.mean(np.asarray(seen["loss"])[-10:]) < np.asarray(seen["loss"])[0]
