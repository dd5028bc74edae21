"""The randomness of reports and projections: variances by simulation, and the paper's rate."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local import device as local_user
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import server
from dpmf_jax.mechanisms.local import variance as local_variance
from dpmf_jax.noise import bits, keys
from tests.cases.local import ITEMS, RANK, USERS, Q, begun, config

pytestmark = pytest.mark.usefixtures("quick_compilation")


VARIANCES = {
    "gd": {},
    "gd, clip": {"clip": 0.5, "epsilon": 3.0},
    "transpose": {"num_projected": Q, "lift": "transpose", "fresh_projection": True, "law": "sign"},
    "partition": {
        "num_projected": Q,
        "lift": "transpose",
        "fresh_projection": True,
        "schedule": "partition",
    },
    "pseudo-inverse": {"num_projected": 3},
}


@pytest.mark.one_case
@pytest.mark.parametrize("name", VARIANCES)
def test_the_variance_of_a_step_is_the_formula(name):
    """Against 3,000 rounds in which all entries are 0; Φ† at 40 items, where its mean square is
    finite.
    """
    settings = config(**(VARIANCES[name] | {"regularization": 0.0, "learning_rate": 1.0}))
    many = 40 if name == "pseudo-inverse" else ITEMS
    users = np.arange(USERS)
    ratings = Ratings(
        users.astype(np.int32),
        (users % many).astype(np.int32),
        np.full(USERS, 3, np.float32),
        users,
        np.arange(many),
        (1.0, 5.0),
    )
    data = layout.make(ratings, num_devices=1)
    made = local.gd(settings) if settings.num_projected is None else local.gd_dr(settings)
    params, start = made.update.args[0], begun(made, data)

    def one(key):
        phi_key, coins_key, noise_key = jax.random.split(key, 3)
        public = start.public._replace(item_factors=jnp.zeros((many, RANK)))
        if settings.num_projected is not None:
            words = bits.public_words(phi_key)
            public = public._replace(words=words)
            if settings.lift == "pseudo-inverse":
                public = public._replace(
                    gram_inverse=projection.gram_inverse(words, "gaussian", 3, many)
                )
        reports, _ = made.query(start._replace(public=public), data, coins_key)
        reports = made.noise.sample(noise_key, reports._replace(value=jnp.zeros(USERS)))
        return server.update(params, public, local_user.message(reports), jnp.int32(0)).item_factors

    steps = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(keys.from_seed(0), 3000)))
    if settings.schedule == "partition":  # the groups are of 3 and 4 of 14; the formula has 3.5
        senders = int(np.sum(np.asarray(start.public.group) == 0))
        steps = steps * math.sqrt(senders / (USERS / settings.num_rounds))
    expected = local_variance.step_variance(settings, num_users=USERS, num_items=many)
    assert steps.var() == pytest.approx(expected, rel=0.06)
    rounds = sum((1 / t) ** 2 for t in range(1, 5))
    assert local_variance.run_variance(settings, num_users=USERS, num_items=many) == pytest.approx(
        rounds * expected
    )


def test_a_partition_has_less_noise_than_reports_in_every_round():
    """coth²(ε/2k) against k·coth²(ε/2): better up to ε of about 3 at k = 2, and always once 4k ≫
    ε².
    """
    sizes = {"num_users": 1000, "num_items": 50}
    for epsilon, k, better in (
        (0.5, 10, True),
        (1.6, 20, True),
        (2.9, 2, True),
        (8.0, 2, False),
        (8.0, 200, True),
    ):
        every, once = (
            local_variance.step_variance(
                config(epsilon=epsilon, num_rounds=k, schedule=schedule), **sizes
            )
            for schedule in ("every-round", "partition")
        )
        ratio = (1 / math.tanh(epsilon / 2 / k)) ** 2 / (k / math.tanh(epsilon / 2) ** 2)
        assert every / once == pytest.approx(ratio, rel=1e-6)
        assert (once < every) == better


@pytest.mark.parametrize(
    ("law", "lift", "q"),
    [
        ("gaussian", "transpose", 4),
        ("sign", "transpose", 4),
        ("sign", "transpose", 40),
        ("gaussian", "pseudo-inverse", 3),
    ],
)
def test_the_scatter_of_a_projection_is_the_formula(law, lift, q):
    """Of ΦᵀΦg and Φ†Φg, entry by entry, over 20,000 draws of Φ: means and variances within five
    standard errors.
    """
    gradient = jnp.asarray([[3.0], [-1.0], [0.5], [0.0], [0.2], [1.0], [-0.7]])
    items, draws = len(gradient), 20_000

    def through(words):
        compressed = projection.apply(words, law, gradient, q)
        if lift == "transpose":
            return projection.apply_transpose(words, law, compressed, items)[:, 0]
        inverse = projection.gram_inverse(words, law, q, items)
        return projection.apply_pseudo_inverse(words, law, inverse, compressed, items)[:, 0]

    words = jax.vmap(bits.public_words)(jax.random.split(keys.from_seed(0), draws))
    lifted = np.asarray(jax.jit(jax.vmap(through))(words), np.float64)
    g = np.asarray(gradient[:, 0], np.float64)
    mean = g if lift == "transpose" else g * q / items
    assert np.all(np.abs(lifted.mean(0) - mean) < 5 * lifted.std(0) / math.sqrt(draws))
    expected = [
        local_variance.projection_variance(
            squared_norm=g @ g,
            squared_entry=x * x,
            num_projected=q,
            num_items=items,
            lift=lift,
            law=law,
        )
        for x in g
    ]
    squares = (lifted - lifted.mean(0)) ** 2
    assert np.all(np.abs(squares.mean(0) - expected) < 5 * squares.std(0) / math.sqrt(draws))
    assert np.max(squares.std(0) / math.sqrt(draws) / expected) < 0.03  # so the test sees 15%


@pytest.mark.seconds
def test_a_whole_round_has_the_variance_of_its_reports_and_that_of_the_projection():
    """Φᵀ with a fresh Φ at real gradients, 3,000 rounds: the sum over entries to 6%, of which Φ's
    part is a half.
    """
    users, q = 2000, 3
    item = (
        np.argsort(np.random.default_rng(0).random((users, ITEMS)), axis=1)[:, :3]
        .astype(np.int32)
        .ravel()
    )
    user = np.repeat(np.arange(users, dtype=np.int32), 3)
    ratings = Ratings(
        user,
        item,
        np.full(3 * users, 5, np.float32),
        np.arange(users),
        np.arange(ITEMS),
        (1.0, 5.0),
    )
    data = layout.make(ratings, num_devices=1)
    chosen = config(
        epsilon=20.0,
        num_rounds=1,
        num_projected=q,
        lift="transpose",
        fresh_projection=True,
        clip=16.0,
        learning_rate=1.0,
        regularization=0.0,
    )
    made = local.gd_dr(chosen)
    state = begun(made, data)
    state = state._replace(
        private=state.private._replace(user_factors=jnp.abs(state.private.user_factors))
    )

    def one(key):
        phi_key, key = jax.random.split(key)
        coins_key, noise_key = jax.random.split(key)
        at = state._replace(public=state.public._replace(words=bits.public_words(phi_key)))
        sent = made.noise.sample(noise_key, made.query(at, data, coins_key)[0])
        after = server.update(made.update.args[0], at.public, local_user.message(sent), at.step)
        return at.public.item_factors - after.item_factors

    draws = jax.random.split(keys.from_seed(1), 3000)
    steps = np.asarray(
        jax.jit(lambda draws: jax.lax.map(one, draws, batch_size=100))(draws), np.float64
    )
    mean = np.asarray(
        local.non_private(chosen).query(state, data, keys.from_seed(2))[0], np.float64
    )
    scatter = sum(
        local_variance.projection_variance(
            squared_norm=float(mean[:, column] @ mean[:, column]),
            squared_entry=float(mean[row, column] ** 2),
            num_projected=q,
            num_items=ITEMS,
        )
        for row in range(ITEMS)
        for column in range(RANK)
    )
    reports = local_variance.step_variance(chosen, num_users=users, num_items=ITEMS) * ITEMS * RANK
    assert steps.var(0).sum() == pytest.approx(reports + scatter, rel=0.06)
    assert 0.4 < scatter / (reports + scatter) < 0.8


def test_the_variance_after_all_rounds_is_that_of_the_recursion():
    """Against 20,000 descents on a quadratic of curvature h with noise of a round's variance, to
    3%; larger without.
    """
    chosen, h = config(num_rounds=7, learning_rate=1.5), 0.4
    sizes = {"num_users": 100, "num_items": 10}
    sigma = math.sqrt(local_variance.step_variance(chosen, **sizes))
    random, v = np.random.default_rng(0), np.zeros(20_000)
    for t in range(1, 8):
        v = v - 1.5 / t * (h * v + sigma * random.standard_normal(len(v)))
    expected = local_variance.run_variance(chosen, **sizes, curvature=h)
    assert v.var() == pytest.approx(expected, rel=0.03)
    plain = local_variance.run_variance(chosen, **sizes)
    assert plain == pytest.approx(sigma**2 * sum((1.5 / t) ** 2 for t in range(1, 8)))
    assert plain > 1.2 * expected


def test_the_papers_rate():
    for q, size in ((None, math.sqrt(60)), (7, 21)):
        entries = 60 if q is None else 21
        found = local_variance.rate_bound(
            config(num_projected=q, num_rounds=4), num_users=400, num_items=20
        )
        assert found == pytest.approx(size * math.sqrt(math.log(entries / 0.05)) / (0.25 * 20))
    split = local_variance.rate_bound(
        config(schedule="partition", num_rounds=4), num_users=400, num_items=20
    )
    assert split == pytest.approx(math.sqrt(60) * math.sqrt(math.log(60 / 0.05)) / 10)


def test_the_pseudo_inverse_has_no_formula_beyond_its_law():
    sizes = {"squared_norm": 1.0, "squared_entry": 0.1, "num_items": 5, "lift": "pseudo-inverse"}
    with pytest.raises(ValueError, match="needs law gaussian"):
        local_variance.projection_variance(num_projected=3, law="sign", **sizes)
    with pytest.raises(ValueError, match="at most 5 rows"):
        local_variance.projection_variance(num_projected=6, **sizes)
    with pytest.raises(ValueError, match="at most 4"):
        local_variance.step_variance(config(num_projected=5), num_users=10, num_items=6)
