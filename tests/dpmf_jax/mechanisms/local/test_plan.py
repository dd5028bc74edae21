"""The plan of local DP: exact variances against simulation, what a clip leaves, where rounds
lead.
"""

import dataclasses
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import plan as local_plan
from dpmf_jax.mechanisms.local import variance as local_variance
from dpmf_jax.mechanisms.local.forecast import Assumptions
from dpmf_jax.noise import keys
from tests.cases.local import begun

pytestmark = pytest.mark.usefixtures("quick_compilation")


SIZES = {"epsilon": 4.0, "num_users": 10_000_000, "num_items": 50, "rank": 10}
DENSE = Assumptions(ratings_per_user=25.0, gain=0.3)
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
    assumed = Assumptions(ratings_per_user=density * items)
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


def test_a_large_epsilon_leaves_plans_of_more_rounds():
    found = local_plan.plans(**(SIZES | {"epsilon": 50.0}), assumptions=DENSE, **FEW)
    assert {p.config.schedule for p in found} == {"every-round"}
    assert all(p.config.epsilon_report <= 20 for p in found)


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
    assumed = Assumptions(ratings_per_user=15.0, deviation=deviation, popularity=1.8, evenness=0.75)
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
