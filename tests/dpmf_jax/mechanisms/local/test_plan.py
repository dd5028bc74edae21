"""The plan of local DP: exact variances against simulation, what a clip leaves, where rounds
lead.
"""

import dataclasses
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import bits, keys
from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local import (
    device as local_user,
)
from dpmf_jax.mechanisms.local import (
    gd as local,
)
from dpmf_jax.mechanisms.local import (
    plan as local_plan,
)
from dpmf_jax.mechanisms.local import (
    variance as local_variance,
)
from tests.cases.local import ITEMS, RANK, USERS, Q, begun, config

pytestmark = pytest.mark.usefixtures("quick_compilation")


# -------------------------------------------------------------------------------------------------


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
        return local.server(params, public, local_user.message(reports), jnp.int32(0)).item_factors

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


# -------------------------------------------------------------------------------------------------


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
        after = local.server(made.update.args[0], at.public, local_user.message(sent), at.step)
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


# -------------------------------------------------------------------------------------------------


def gaussian_ratings(users: int, items: int, each: int) -> Ratings:
    """Everybody rates `each` items; values are Gaussian, of deviation 1.1 about 3."""
    random = np.random.default_rng(0)
    item = np.concatenate([random.choice(items, each, replace=False) for _ in range(users)]).astype(
        np.int32
    )
    user = np.repeat(np.arange(users, dtype=np.int32), each)
    value = (3 + 1.1 * random.standard_normal(users * each)).astype(np.float32)
    order = np.lexsort((item, user))
    return Ratings(
        user[order], item[order], value[order], np.arange(users), np.arange(items), (-5.0, 11.0)
    )


@pytest.mark.parametrize("q", [None, 5, 60, 400])
def test_the_size_of_entries_and_the_share_beyond_the_clip(q):
    """20,000 users who rate 15 of 60 items, at ‖u‖ = 1 and d = 8: size to 4%, clipped share to
    0.025, any q.
    """
    users, items, each, rank = 20_000, 60, 15, 8
    assumed = local_plan.Assumptions(ratings_per_user=each)
    size = local_plan.entry_deviation(rank, q, assumed)
    data = layout.make(gaussian_ratings(users, items, each), kind="split", num_devices=1)
    for relative in (0.5, 2.0):
        chosen = config(rank=rank, num_projected=q, clip=relative * size)
        made = local.gd(chosen) if q is None else local.gd_dr(chosen)
        if q == 400:
            made = local.gd_dr(dataclasses.replace(chosen, lift="transpose", fresh_projection=True))
        state = begun(made, data)
        factors = jax.random.normal(keys.from_seed(9), (users, rank)) / math.sqrt(rank)
        state = state._replace(private=state.private._replace(user_factors=factors))
        rated = 1.0 if q else each / items
        sent, info = made.query(state, data, keys.from_seed(5))
        clipped = float(info.clipped_fraction) / rated
        assert clipped == pytest.approx(local_plan.clipped_share(relative), abs=0.025)
        assert np.mean(np.abs(np.asarray(sent.value)) >= 1) / rated == pytest.approx(
            clipped, abs=1e-3
        )
    wide = dataclasses.replace(made.query.args[0], clip=jnp.float32(1e6))
    entries = (
        np.asarray(made.query.func(wide, state, data, keys.from_seed(6))[0].value, np.float64) * 1e6
    )
    assert np.sqrt(np.mean(entries**2) / rated) == pytest.approx(size, rel=0.04)


@pytest.mark.parametrize("relative", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_a_clip_leaves_a_small_shift_as_stated(relative):
    """x = u·(e + shift·u): the mean of clip(x)·sign is `shrinkage` of the unclipped one, to 4
    standard errors.
    """
    random, shift, num = np.random.default_rng(1), 0.05, 4_000_000
    u, e = random.standard_normal((2, num))
    # the same e with the shift and without it: what the shift adds, with little noise
    added = np.clip(u * (e + shift * u), -relative, relative) - np.clip(u * e, -relative, relative)
    left, error = added.mean() / shift, added.std() / shift / math.sqrt(num)
    assert left == pytest.approx(float(local_plan.shrinkage(relative)), abs=4 * error + 0.01)
    beyond = np.mean(np.abs(u * e) > relative)
    assert beyond == pytest.approx(local_plan.clipped_share(relative), abs=2e-3)


def test_a_hard_clip_costs_speed_and_hardly_signal_for_the_noise():
    ratio = [float(local_plan.shrinkage(w)) / w for w in (1e-6, 0.25, 0.5, 1.0, 2.0, 4.0)]
    assert ratio[0] == pytest.approx(2 / math.pi)
    assert ratio == sorted(ratio, reverse=True)
    assert float(local_plan.shrinkage(100.0)) == pytest.approx(1)


@pytest.mark.parametrize("each", [5.0, 100.0])
def test_a_projection_gains_one_over_the_density_at_one_relative_clip_whatever_q_is(each):
    items, assumed = 1000, local_plan.Assumptions(ratings_per_user=each)

    def variance(q: int | None) -> float:
        clip = 2.0 * local_plan.entry_deviation(RANK, q, assumed)
        lift = (
            {} if q is None else {"num_projected": q, "lift": "transpose", "fresh_projection": True}
        )
        return local_variance.step_variance(config(clip=clip, **lift), num_users=1, num_items=items)

    for q in (3, 40, 1000):
        assert variance(None) / variance(q) == pytest.approx(items / each, rel=1e-9)
    # as published the clip is 1, and the noise then grows with q
    ones = [
        local_variance.step_variance(
            config(num_projected=q, lift="transpose"), num_users=1, num_items=items
        )
        for q in (3, 40)
    ]
    assert ones[1] / ones[0] == pytest.approx(40 / 3)


# -------------------------------------------------------------------------------------------------


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


SIZES = {"epsilon": 4.0, "num_users": 10_000_000, "num_items": 50, "rank": 10}
DENSE = local_plan.Assumptions(ratings_per_user=25.0, gain=0.3)
FEW = {"rounds": (1, 3, 50), "num_projected": (10, 50)}


def planned(**settings) -> local_plan.Plan:
    return local_plan.plan(**(SIZES | {"assumptions": DENSE} | FEW | settings))


def test_plans_are_of_every_kind_and_best_first():
    found = local_plan.plans(**SIZES, assumptions=DENSE, **FEW)
    kinds = {(p.config.schedule, p.config.num_projected and p.config.lift) for p in found}
    assert len(found) == len(kinds) == 6
    assert [p.rmse for p in found] == sorted(p.rmse for p in found)
    assert found[0] == planned()
    for plan in found:
        made = (
            local.gd(plan.config) if plan.config.num_projected is None else local.gd_dr(plan.config)
        )
        assert made.guarantee(plan.config.num_rounds).epsilon == 4.0
        assert plan.config.num_rounds in FEW["rounds"]
        assert 0 <= plan.learnt <= 1
        assert 0 < plan.noise < math.inf


@hypothesis.settings(max_examples=6)
@hypothesis.given(
    st.floats(0.05, 15.0),
    st.floats(2.0, 8.0),
    st.integers(10, 5000),
    st.integers(1, 20),
    st.floats(0.02, 0.5),
)
def test_a_plan_is_useful_from_the_users_needed_on(epsilon, users, items, rank, density):
    assumed = local_plan.Assumptions(ratings_per_user=density * items)
    sizes = {
        "epsilon": epsilon,
        "num_items": items,
        "rank": rank,
        "assumptions": assumed,
        "rounds": (1, 10),
    }
    found = local_plan.plan(num_users=round(10**users), num_projected=(items,), **sizes)
    assert found.mean_rmse == 1.1
    assert found.useful == (found.rmse < 1.1)
    if math.isinf(found.users_needed):
        assert not found.useful
        return
    for factor, useful in ((1.03, True), (0.96, False)):
        near = local_plan.plan(
            num_users=round(factor * found.users_needed) + useful, num_projected=(items,), **sizes
        )
        if found.users_needed > 100 and near.num_users < 1e12:
            assert near.useful == useful


def test_more_users_more_epsilon_or_more_gain_never_hurt():
    base = planned()
    for better in (
        {"num_users": 100_000_000},
        {"epsilon": 8.0},
        {"rounds": (1, 3, 10, 50)},
        {"num_projected": (10, 50, 100)},
    ):
        other = planned(**better)
        assert other.rmse <= base.rmse * math.sqrt(local_plan.CLOSE)
        assert other.users_needed <= base.users_needed * 1.03


def test_the_model_without_users_who_rate_or_noise_stays_where_it_starts():
    """At a tiny rate nothing moves: the error is the deviation's square and the random start's
    1/d.
    """
    tiny = dataclasses.replace(DENSE, largest_rate=1e-9)
    found = planned(assumptions=tiny)
    assert found.rmse == pytest.approx(math.sqrt(1.1**2 + 1 / 10), rel=1e-3)
    assert found.noise < 1e-6
    assert math.isinf(found.users_needed)
    assert "with any number of users" in found.sentence


def test_the_noise_of_a_plan_is_that_of_its_run():
    """The noise in V is about `run_variance`, which leaves out that V comes back, and Φᵀ's
    scatter.
    """
    for plan in local_plan.plans(**SIZES, assumptions=DENSE, **FEW):
        alone = local_variance.run_variance(plan.config, num_users=10_000_000, num_items=50)
        assert 0.2 * alone < plan.noise**2 < 1.3 * alone


def test_sentences_say_what_to_expect():
    good, bad = planned(), planned(num_users=300)
    assert good.useful
    assert good.sentence.startswith(
        "Useful: with 10,000,000 users at ε = 4, 50 items and rank 10, RMSE is expected to be"
    )
    assert not bad.useful
    assert bad.sentence.startswith("Not useful: with 300 users")
    assert f"to be useful takes about {local_plan.count(bad.users_needed)}," in bad.sentence
    for plan in (good, bad):
        assert plan.sentence.count(". ") == 0


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


@pytest.mark.parametrize(
    ("number", "shown"),
    [(math.inf, "inf"), (0.3, "1"), (99.5, "100"), (1234.0, "1,300"), (7e9, "7,000,000,000")],
)
def test_users_are_counted_up(number, shown):
    assert local_plan.count(number) == shown


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": 1e4}, "no plan is left"),
        ({"num_users": 0}, "num_users"),
        ({"num_items": 0}, "num_items"),
        ({"rank": 0}, "rank"),
        ({"rounds": ()}, "rounds"),
        ({"rounds": (0, 3)}, "rounds"),
        ({"num_projected": (0,)}, "num_projected"),
        ({"num_items": 19}, "ratings_per_user must be at most 19"),
    ],
)
def test_refused_plans(bad, told):
    with pytest.raises(ValueError, match=told):
        planned(**bad)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"ratings_per_user": 0.0}, "ratings_per_user"),
        ({"deviation": math.nan}, "deviation"),
        ({"popularity": math.inf}, "popularity"),
        ({"directions": 0}, "directions"),
        ({"largest_rate": -1.0}, "largest_rate"),
        ({"gain": 1.0}, "gain"),
        ({"evenness": 0.0}, "evenness"),
    ],
)
def test_refused_assumptions(bad, told):
    with pytest.raises(ValueError, match=told):
        local_plan.Assumptions(**bad)


def test_a_large_epsilon_leaves_plans_of_more_rounds():
    found = local_plan.plans(**(SIZES | {"epsilon": 50.0}), assumptions=DENSE, **FEW)
    assert {p.config.schedule for p in found} == {"every-round"}
    assert all(p.config.epsilon_report <= 20 for p in found)


def test_the_pseudo_inverse_has_no_formula_beyond_its_law():
    sizes = {"squared_norm": 1.0, "squared_entry": 0.1, "num_items": 5, "lift": "pseudo-inverse"}
    with pytest.raises(ValueError, match="needs law gaussian"):
        local_variance.projection_variance(num_projected=3, law="sign", **sizes)
    with pytest.raises(ValueError, match="at most 5 rows"):
        local_variance.projection_variance(num_projected=6, **sizes)
    with pytest.raises(ValueError, match="at most 4"):
        local_variance.step_variance(config(num_projected=5), num_users=10, num_items=6)


@pytest.mark.slow
def test_the_plan_is_as_good_as_the_best_of_a_grid_of_real_runs():
    """6,000 generated users, 40 items: each RMSE within 10% of what is expected, the plan's within
    2% of the best.
    """
    from dpmf_jax.data import synthetic

    sizes = {"epsilon": 4.0, "num_users": 6000, "num_items": 40, "rank": 3}
    ratings = synthetic.generate(num_users=6000, num_items=40, num_ratings=100_000, rank=3, seed=1)
    hidden = np.random.default_rng(0).random(100_000) < 0.1
    train, test = ratings.take(~hidden), ratings.take(hidden)
    center, deviation = float(train.value.mean()), float(train.value.std())
    assumed = local_plan.Assumptions(
        ratings_per_user=15.0, deviation=deviation, popularity=1.8, evenness=0.75
    )
    data = layout.make(train, num_devices=1)

    def rmse(plan):
        chosen = dataclasses.replace(plan.config, center=center)
        made = local.gd(chosen) if chosen.num_projected is None else local.gd_dr(chosen)
        state, _ = protocol.train(
            made, keys.from_seed(2), begun(made, data, seed=1), data, chosen.num_rounds
        )
        factors = protocol.factors(state)
        predicted = np.einsum(
            "nr,nr->n",
            np.asarray(factors.user_factors)[test.user],
            np.asarray(factors.item_factors)[test.item],
        )
        return float(np.sqrt(np.mean((center + predicted - test.value) ** 2)))

    grid = [
        plan
        for k in (1, 3, 20)
        for q in (10, 40)
        for plan in local_plan.plans(**sizes, assumptions=assumed, rounds=(k,), num_projected=(q,))
    ]
    found = {id(plan): rmse(plan) for plan in grid}
    for plan in grid:
        assert found[id(plan)] == pytest.approx(plan.rmse, rel=0.1), plan.config
    best = local_plan.plan(**sizes, assumptions=assumed, rounds=(1, 3, 20), num_projected=(10, 40))
    assert rmse(best) < 1.02 * min(found.values())
