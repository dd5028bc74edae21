"""Paper 003 made sound: whole messages are clipped in integers, and a user moves a sum by that."""

import dataclasses
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from audits.mechanism import density, post_processing
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels.descent import unit_rows
from dpmf_jax.mechanisms.federated import crowd
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.federated.config import grid
from dpmf_jax.noise import keys, ring
from dpmf_jax.noise import laws as noise

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK, EACH = 8, 41, 3, 5
ALPHA = 1e-4
MAKERS = {"per_user": federated.per_user, "statistics": federated.statistics}


def apart() -> Ratings:
    """Every user rates items of her own, so a sum shows each message; one item is free."""
    user = np.repeat(np.arange(USERS), EACH).astype(np.int32)
    item = np.arange(USERS * EACH).astype(np.int32)
    value = np.random.default_rng(0).integers(1, 6, USERS * EACH).astype(np.float32)
    return Ratings(user, item, value, np.arange(USERS), np.arange(ITEMS), (1.0, 5.0))


def together() -> Ratings:
    """Ten users on four items."""
    random = np.random.default_rng(1)
    user, item = np.nonzero(random.random((10, 4)) < 0.7)
    value = random.integers(1, 6, len(user)).astype(np.float32)
    return Ratings(
        user.astype(np.int32), item.astype(np.int32), value, np.arange(10), np.arange(4), (1.0, 5.0)
    )


APART, TOGETHER = apart(), together()


def config(**settings) -> federated.Config:
    defaults = {
        "epsilon": 1.0,
        "rating_range": (1.0, 5.0),
        "rank": RANK,
        "center": 3.0,
        "num_iterations": 10,
    }
    return federated.Config(**(defaults | settings))


def clip_steps(settings: federated.Config, made) -> int:
    """⌊C/h⌋ from the settings, not from the mechanism: h is the scale over 2^20, and the scale
    2CT/ε.
    """
    assert settings.rounding_step is not None
    return int(Fraction(settings.clip_norm) / Fraction(settings.rounding_step))


def begun(mechanism, data, seed=0):
    """A start; per user with item rows that point anywhere, since at the mechanism's own, 0,
    residuals are ratings.
    """
    state = protocol.begin(mechanism, keys.from_seed(seed), data)
    if not hasattr(state.public, "item_factors"):
        return state
    moved = unit_rows(keys.from_seed(seed + 1), *state.public.item_factors.shape)
    return state._replace(public=state.public._replace(item_factors=moved))


@jax.jit
def statistics_of(mechanism, state, data):
    return mechanism.query(state, data, keys.from_seed(1))[0]


def whole(statistics) -> np.ndarray:
    """The secret part, int64[items, coordinates]."""
    parts = [np.asarray(ring.signed(leaf), np.int64) for leaf in jax.tree.leaves(statistics.secret)]
    return np.concatenate(parts, axis=1)


# --------------------------------------------------------------------------------------------- the


def extreme(random: np.random.Generator, shape, spread: float) -> np.ndarray:
    """Numbers over 10^±spread, some of them zero, huge or no numbers at all."""
    out = random.choice([-1.0, 1.0], shape) * 10.0 ** random.uniform(-spread, spread, shape)
    special = [0.0, 3e38, -3e38, math.inf, -math.inf, math.nan, 1e-40]
    odd = random.random(shape) < 0.1 * (spread > 10)
    return np.where(odd, random.choice(special, shape), out).astype(np.float32)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ["dense", "split"])
def test_no_message_exceeds_the_clip_whatever_the_data(name, kind):
    settings = config(clip_norm=1.0, rounding_step=2.0**-20)
    mechanism = MAKERS[name](settings)
    data = layout.make(APART, kind=kind, num_devices=1)
    state, limit = begun(mechanism, data), clip_steps(settings, mechanism)
    random, largest = np.random.default_rng(2), []
    for trial in range(60):
        spread = (0.5, 3.0, 30.0)[trial % 3]

        def strange(leaf, spread=spread):
            return jnp.asarray(extreme(random, leaf.shape, spread))

        if name == "per_user":
            private = state.private._replace(user_factors=strange(state.private.user_factors))
            world = state._replace(
                private=private,
                public=state.public._replace(item_factors=strange(state.public.item_factors)),
            )
        else:
            world = state._replace(
                public=state.public._replace(directions=strange(state.public.directions))
            )
        stored = data.stored
        # of a split layout they stay as they are: its two orientations must agree
        moved = stored._replace(value=strange(stored.value)) if kind == "dense" else stored
        total = whole(statistics_of(mechanism, world, dataclasses.replace(data, stored=moved)))
        messages = np.abs(total[:-1]).reshape(USERS, -1).sum(axis=1)
        assert np.all(messages <= limit)
        assert np.all(total[-1] == 0)
        largest.append(messages.max() / limit)
    assert max(largest) > 0.999  # a hair inside, no more


@pytest.mark.parametrize("kind", ["dense", "split"])
@pytest.mark.parametrize("fine", [True, False])
def test_float_rounding_cannot_push_a_message_over_the_clip(kind, fine):
    """On a grid finer than float32, where truncation hides nothing; and where all residuals are
    rounding errors.
    """
    rank, clip_norm = 37, 1.0 if fine else 1e-8
    settings = config(
        rank=rank,
        epsilon=1e4,
        clip_norm=clip_norm,
        rounding_step=clip_norm * 2.0 ** (-29 if fine else -20),
    )
    mechanism = federated.per_user(settings)
    over = []
    for seed in range(12):
        state = begun(mechanism, layout.make(APART, kind=kind, num_devices=1), seed)
        users, items = np.asarray(state.private.user_factors), np.asarray(state.public.item_factors)
        ratings = APART
        if not fine:
            predicted = np.float32(3.0) + np.einsum(
                "nr,nr->n", users[APART.user], items[APART.item]
            )
            ratings = dataclasses.replace(APART, value=predicted.astype(np.float32))
        total = whole(
            statistics_of(mechanism, state, layout.make(ratings, kind=kind, num_devices=1))
        )
        messages = np.abs(total[:-1]).reshape(USERS, -1).sum(axis=1)
        over.append(messages.max() / clip_steps(settings, mechanism))
    assert max(over) <= 1
    assert max(over) > (0.999 if fine else 0)


def test_a_message_within_the_clip_is_the_gradient_toward_zero():
    settings = config(clip_norm=1e4, rounding_step=2.0**-8)
    mechanism, data = federated.per_user(settings), layout.make(APART, num_devices=1)
    state = begun(mechanism, data)
    users, items = (
        np.asarray(f, np.float64) for f in (state.private.user_factors, state.public.item_factors)
    )
    expected = np.zeros((ITEMS, RANK))
    for u, i, r in zip(APART.user, APART.item, APART.value, strict=True):
        expected[i] = -2 * users[u] * (r - 3.0 - users[u] @ items[i])
    seen = whole(statistics_of(mechanism, state, data)) * 2.0**-8
    assert np.all(np.abs(seen) <= np.abs(expected) + 1e-4)
    assert np.all(np.abs(expected) - np.abs(seen) < 2.0**-8 + 1e-4)


def test_a_clipped_message_keeps_its_direction():
    mechanism, data = federated.per_user(config(clip_norm=0.01)), layout.make(APART, num_devices=1)
    free = federated.per_user(config(clip_norm=1e3, rounding_step=1e-4))
    state = begun(mechanism, data)
    clipped, whole_ones = (
        whole(statistics_of(m, state, data))[:-1].reshape(USERS, -1).astype(float)
        for m in (mechanism, free)
    )
    cosine = np.sum(clipped * whole_ones, axis=1)
    cosine /= np.linalg.norm(clipped, axis=1) * np.linalg.norm(whole_ones, axis=1)
    assert np.all(cosine > 0.9999)


# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_one_user_moves_the_sums_by_no_more_than_is_priced(name):
    """Every user of a small set removed, and every user's data put in place of every other's, whole
    numbers.
    """
    settings = config(clip_norm=0.5, rounding_step=2.0**-16)
    mechanism, data = MAKERS[name](settings), layout.make(TOGETHER, kind="dense", num_devices=1)
    state, limit = begun(mechanism, data), clip_steps(settings, mechanism)
    base = whole(statistics_of(mechanism, state, data))
    removed, replaced = [], []
    for user in range(10):
        without = whole(statistics_of(mechanism, state, layout.remove_user(data, user)))
        removed.append(np.abs(base - without).sum())
        for other in range(10):
            stored = data.stored
            swapped = stored._replace(
                value=stored.value.at[user].set(6 - stored.value[other]),
                present=stored.present.at[user].set(stored.present[other]),
            )
            world = state
            if name == "per_user":  # and the own factor, which may be anything
                users = state.private.user_factors
                world = state._replace(
                    private=state.private._replace(user_factors=users.at[user].set(-users[other]))
                )
            total = whole(
                statistics_of(mechanism, world, dataclasses.replace(data, stored=swapped))
            )
            replaced.append(np.abs(base - total).sum())
    assert max(removed) <= limit
    assert max(replaced) <= 2 * limit
    assert max(removed) > 0.99 * limit
    assert max(replaced) > 1.2 * limit


# ------------------------------------------------------------------------------------------------ o


@pytest.mark.one_case
@pytest.mark.parametrize("change", ["replace", "remove"])
@pytest.mark.parametrize("rounding_step", [None, 0.003])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.3])
def test_the_noise_in_use_costs_the_epsilon_that_is_stated(change, rounding_step, epsilon):
    settings = config(epsilon=epsilon, change=change, rounding_step=rounding_step, clip_norm=0.7)
    mechanism = federated.per_user(settings)
    guarantee = mechanism.guarantee(10)
    assert guarantee.unit == "user"
    assert guarantee.status == "proved"
    assert guarantee.epsilon == epsilon
    assert guarantee.mechanism == "federated-user"
    law = mechanism.noise.sample.args[0].sample.args[0]
    steps = int(mechanism.query.args[0].clip_steps)
    moves = (2 if change == "replace" else 1) * steps
    spent = 10 * moves / float(law.scale)
    assert spent <= epsilon * (1 + 1e-6)
    assert spent > 0.99 * epsilon
    assert mechanism.guarantee(20).epsilon == pytest.approx(2 * epsilon, abs=1e-4)


def test_the_noise_reaches_every_item_rated_or_not_and_has_its_scale():
    """On data without ratings the response is the noise."""
    settings = config()
    mechanism = federated.per_user(settings)
    data = layout.make(APART, kind="dense", num_devices=1)
    for user in range(USERS):
        data = layout.remove_user(data, user)
    statistics = statistics_of(mechanism, begun(mechanism, data), data)
    assert not np.any(whole(statistics))
    draw = jax.jit(jax.vmap(lambda key: mechanism.noise.sample(key, statistics).secret))
    drawn = np.asarray(ring.signed(draw(jax.random.split(keys.from_seed(2), 100))), np.float64)
    assert np.max(np.sum(drawn == 0, axis=0)) <= 1  # of 100; one number in 2 million is 0
    scale = 2 * 10 / 1.0
    real = drawn.ravel() * scale * 2.0**-20
    fits = [
        scipy.stats.kstest(real, scipy.stats.laplace(scale=b).cdf).pvalue
        for b in (scale, scale / 1.5, scale * 1.5)
    ]
    assert fits[0] > ALPHA > max(fits[1:])


def test_the_grid_never_makes_the_noise_smaller_than_its_price():
    for clip_norm, step, scale in [(1.0, None, 20.0), (0.3, 0.0007, 11.1), (7.7, 1.0, 1e3)]:
        made = grid(config(clip_norm=clip_norm, rounding_step=step), scale)
        assert made.clip_steps * Fraction(made.step) <= Fraction(clip_norm)
        assert Fraction(made.scale_steps) * Fraction(made.step) >= Fraction(scale)
    with pytest.raises(ValueError, match="clip_norm must be from 1 to 2"):
        grid(config(clip_norm=1.0, rounding_step=2.0), 20.0)
    with pytest.raises(ValueError, match="rounding_step must be at least"):
        grid(config(clip_norm=1.0, rounding_step=2.0**-25), 20.0)


# --------------------------------------------------------------------------------------------------


def quiet(mechanism):
    """The same without its noise, still on the grid."""
    return mechanism._replace(noise=crowd.noisy_sums(noise.none(), mechanism.noise.sample.args[1]))


def test_v_moves_by_the_noisy_sum_over_the_number_who_take_part():
    mechanism = federated.per_user(config(item_learning_rate=3.0, prior_count=2.0))
    data = layout.make(TOGETHER, kind="dense", num_devices=1)
    state = begun(mechanism, data)
    response = mechanism.noise.sample(keys.from_seed(3), statistics_of(mechanism, state, data))
    after = jax.jit(mechanism.update)(state, response, data)
    before = np.asarray(state.public.item_factors, np.float64)
    mean = np.asarray(ring.signed(response.secret), np.float64) * 20 * 2.0**-20 / 10
    np.testing.assert_allclose(
        after.public.item_factors, before - 3 * (mean + 2 * 0.001 * 2 * before / 10), rtol=1e-4
    )


def test_it_learns_where_epsilon_is_large():
    mechanism = federated.per_user(config(epsilon=1e5, num_iterations=60, item_learning_rate=2.0))
    data = layout.make(TOGETHER, num_devices=1)
    _, info = protocol.train(mechanism, keys.from_seed(1), begun(mechanism, data), data, 60)
    assert float(info.loss[-1]) < 0.5 * float(info.loss[0])


@pytest.mark.parametrize("honest", [None, 2])
def test_an_iteration_with_too_few_participants_releases_nothing(honest):
    population = federated.Population(join=0.2, leave=0.1, at_most=4)
    mechanism = federated.per_user(config(population=population, honest_shares=honest))
    data = layout.make(TOGETHER, kind="dense", num_devices=1)
    state, needed = begun(mechanism, data), 4 if honest is None else honest + 1
    released = []
    for _ in range(12):
        before = state
        state, _info = protocol.train(mechanism, keys.from_seed(1), state, data, 1)
        num = int(np.sum(np.asarray(state.public.crowd) == crowd.TAKES_PART))
        moved = not np.array_equal(before.public.item_factors, state.public.item_factors)
        assert moved == (num >= needed)
        released.append(moved)
    assert set(released) == {True, False}
    assert mechanism.guarantee(10).epsilon == 1.0
    assert any(f"least {needed - 1} " in text for text in mechanism.guarantee(10).assumptions)


@pytest.mark.seconds
def test_a_silent_iteration_has_the_same_law_in_both_worlds():
    law = crowd.noisy_sums(ring.discrete_laplace(8.0), jnp.int32(3))
    few, enough = jnp.array([2, 2, 1], jnp.int32), jnp.array([2, 2, 2], jnp.int32)
    here, there = (jnp.full((2, 2), x, jnp.uint32) for x in (5, 9))
    for present, ratio in ((few, 0.0), (enough, 16 / 8)):
        one, two = crowd.Sums(here, None, present), crowd.Sums(there, None, present)
        response = law.sample(keys.from_seed(0), one)
        assert bool(jnp.all(response.secret == 0)) == (present is few)
        silent = response._replace(secret=jnp.zeros((2, 2), jnp.uint32))
        assert float(law.log_ratio(silent, one, two)) == pytest.approx(ratio)
        assert math.isfinite(float(law.log_prob(silent, one)))
    other_crowd = crowd.Sums(here, None, few[::-1])
    assert float(law.log_prob(silent, other_crowd)) == -math.inf


@pytest.mark.one_case
@pytest.mark.parametrize("name", [*MAKERS, "crowd"])
def test_what_is_public_follows_from_responses_and_no_count_is_used(name):
    population = federated.Population(join=0.5, leave=0.1, at_most=4) if name == "crowd" else None
    mechanism = MAKERS.get(name, federated.per_user)(config(population=population))
    data = layout.make(TOGETHER, kind="dense", num_devices=1)
    steps = 1 if name == "statistics" else 4
    statistics = statistics_of(mechanism, begun(mechanism, data), data)
    assert statistics.count is None
    for finding in post_processing.audit(
        mechanism, TOGETHER, data, key=keys.from_seed(2), num_steps=steps, num_neighbours=4
    ):
        assert finding.verdict == "consistent", finding


@pytest.mark.slow
@pytest.mark.parametrize("population", [None, federated.Population(join=0.9, leave=0.1, at_most=3)])
def test_the_density_is_that_of_the_sampler(population):
    mechanism = federated.per_user(config(epsilon=5.0, population=population))
    data = layout.make(TOGETHER, kind="dense", num_devices=1)
    for finding in density.audit(mechanism, TOGETHER, data, key=keys.from_seed(1), num_steps=2):
        assert finding.verdict == "consistent", finding


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.001, 2.0])
def test_statistics_without_noise_are_the_sums_and_v_solves_them(ridge):
    settings = config(
        epsilon=1e4,
        clip_norm=60.0,
        rounding_step=2.0**-16,
        prior_count=500.0,
        user_regularization=ridge,
    )
    mechanism = quiet(federated.statistics(settings))
    data = layout.make(TOGETHER, num_devices=1)
    state = begun(mechanism, data)
    known = np.asarray(state.public.directions, np.float64)
    matrix, vector = np.zeros((4, RANK, RANK)), np.zeros((4, RANK))
    for u, i, r in zip(TOGETHER.user, TOGETHER.item, TOGETHER.value, strict=True):
        matrix[i] += np.outer(known[u], known[u])
        vector[i] += (r - 3.0) * known[u]
    seen = whole(statistics_of(mechanism, state, data)) * 2.0**-16
    upper = np.triu_indices(RANK)
    np.testing.assert_allclose(seen, np.concatenate([matrix[:, *upper], vector], axis=1), atol=1e-3)
    state, _ = protocol.train(mechanism, keys.from_seed(1), state, data, 1)
    solved = np.stack(
        [np.linalg.solve(a + 0.5 * np.eye(RANK), b) for a, b in zip(matrix, vector, strict=True)]
    )
    np.testing.assert_allclose(state.public.item_factors, solved, atol=0.02)

    values = np.zeros((10, 4))
    values[TOGETHER.user, TOGETHER.item] = TOGETHER.value - 3.0
    present = np.zeros((10, 4))
    present[TOGETHER.user, TOGETHER.item] = 1
    items = np.asarray(state.public.item_factors, np.float64)
    own = [
        np.linalg.solve(
            (items.T * p) @ items + ridge * np.eye(RANK), items.T @ v + ridge * direction
        )
        for p, v, direction in zip(present, values, known, strict=True)
    ]
    fitted = np.asarray(state.private.user_factors, np.float64)
    predicted, best = present * (fitted @ items.T), present * (np.stack(own) @ items.T)
    np.testing.assert_allclose(predicted, best, atol=0.02)
    assert protocol.factors(state).user_factors is state.private.user_factors


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_statistics_that_are_mostly_noise_still_give_finite_factors(epsilon):
    mechanism = federated.statistics(config(epsilon=epsilon))
    data = layout.make(APART, num_devices=1)
    state, _ = protocol.train(mechanism, keys.from_seed(1), begun(mechanism, data), data, 1)
    assert np.all(np.isfinite(state.public.item_factors))
    assert np.all(np.isfinite(state.private.user_factors))
    guarantee = mechanism.guarantee(1)
    assert (guarantee.epsilon, guarantee.unit, guarantee.mechanism) == (
        epsilon,
        "user",
        "federated-statistics",
    )


def test_what_has_no_price_is_refused():
    with pytest.raises(PrivacyError, match="fixed beforehand"):
        federated.per_user(config(num_iterations=None))
    with pytest.raises(ValueError, match="population goes with per_user"):
        federated.statistics(config(population=federated.Population()))
    with pytest.raises(ValueError, match="honest_shares must be below at_most"):
        federated.per_user(config(population=federated.Population(at_most=5), honest_shares=5))
