"""The benchmark of paper 003: NumPy computes what the mechanism computes, and a row stands for
every contender.
"""

import numpy as np
import pytest

from dpmf_jax.data import synthetic
from dpmf_jax.errors import UsageError
from experiments.bench import command as bench_command
from experiments.bench import generated, measure, objective

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RATINGS, RANK = 60, 25, 400, 3


@pytest.fixture(scope="module")
def ratings():
    return synthetic.generate(num_users=USERS, num_items=ITEMS, num_ratings=RATINGS)


def test_numpy_assembles_and_solves_the_perturbed_objective(ratings):
    """Against the sums as they are written, and the gradient of the objective at its minimiser."""
    users = objective._users(USERS, RANK)
    matrix, vector = objective.assemble(objective.by_item(ratings), users)
    for item in range(ITEMS):
        own = ratings.item == item
        rows, centred = users[ratings.user[own]], ratings.value[own] - objective.CENTER
        np.testing.assert_allclose(
            matrix[item], sum(np.outer(u, u) for u in rows) if own.any() else 0, atol=1e-5
        )
        np.testing.assert_allclose(vector[item], centred @ rows, atol=1e-4)
    factors = objective.solve(matrix, vector, 0.0, np.random.default_rng(0))
    gradient = np.einsum("jab,jb->ja", matrix, factors) + objective.RIDGE * factors - vector
    np.testing.assert_allclose(gradient, 0, atol=1e-3)


def test_the_noise_of_numpy_has_the_law_that_is_priced():
    """With A = 0 and b = 0 the solution is -η/2 over the ridge: radius Gamma(d), direction
    uniform.
    """
    many = 4_000
    nothing = np.zeros((many, RANK, RANK), np.float32), np.zeros((many, RANK), np.float32)
    factors = objective.solve(*nothing, 2.5, np.random.default_rng(0))
    radius = np.linalg.norm(2 * objective.RIDGE * factors, axis=1)
    assert radius.mean() == pytest.approx(RANK * 2.5, rel=0.05)
    assert radius.var() == pytest.approx(RANK * 2.5**2, rel=0.2)
    assert np.abs(factors.mean(axis=0)).max() < 0.1 * np.abs(factors).mean()


def test_threads_make_what_one_makes(ratings):
    from concurrent.futures import ThreadPoolExecutor

    users, rated = objective._users(USERS, RANK), objective.by_item(ratings)
    pool = ThreadPoolExecutor(2)
    alone, shared = objective.assemble(rated, users), objective.assemble(rated, users, pool)
    np.testing.assert_array_equal(alone[0], shared[0])
    one, many = (
        objective.solve(*alone, 3.0, np.random.default_rng(1), threads) for threads in (None, pool)
    )
    np.testing.assert_allclose(one, many, rtol=1e-5)


@pytest.fixture(scope="module")
def ours(ratings):
    return objective._ours(ratings, objective._users(USERS, RANK), 1)[0]


@pytest.mark.seconds
@pytest.mark.parametrize("planted", ["a rating", "a user"])
def test_a_planted_disagreement_is_refused(planted, ratings, ours):
    users, made = objective._users(USERS, RANK), ours
    rated = objective.by_item(ratings)
    assert max(objective._differences(made, rated, users).values()) < 1e-5
    if planted == "a rating":
        rated.value[3] += 0.5
    else:
        users = users[::-1].copy()
    with pytest.raises(FloatingPointError, match="differ"):
        objective._differences(made, rated, users)


@pytest.mark.slow
def test_a_small_run_has_a_row_for_every_contender(monkeypatch):
    monkeypatch.setitem(generated.SIZES, "tiny", (USERS, ITEMS, RATINGS))
    monkeypatch.setattr(objective, "CONSECUTIVE", 2)
    told = objective.run("tiny", RANK, 2, num_devices=1, iterations_size=(50, 6, 120))
    rows = {(row["part"], row["contender"]): row for row in told["rows"]}
    assert list(rows) == [(part, name) for part in objective.PARTS for name in objective.CONTENDERS]
    for (part, name), row in rows.items():
        assert row["ms"] > 0
        assert row["spread_ms"] >= 0
        assert (row["ratio"] == 1) == (name == "NumPy")
        assert (row["compile_ms"] is None) == (name != "jax")
        assert (row["peak_mb"] is not None) == (part == "whole" and name != "NumPy, threads")
    assert [floor["of"] for floor in told["floors"]] == [
        "whole, jax",
        "assemble, jax",
        "solve, jax",
    ]
    assert all(floor["floor_ms"] > 0 for floor in told["floors"])
    assert max(told["largest_difference"].values()) < 1e-5
    assert [row["variant"] for row in told["iterations"]] == ["static", "dynamic"]
    for row in told["iterations"]:
        assert row["whole_run_s"] == pytest.approx(row["ms"] / 1e3 * row["iterations"])
    assert bench_command.render(told)


def test_what_the_closed_form_must_cost():
    parts = objective.closed_form(num_items=2, num_ratings=10, rank=3)
    assert parts["assemble"] == {"flops": 10 * (9 + 6), "bytes": 10 * 8 + 2 * 12 * 4}
    assert parts["solve"] == {"flops": 2 * (9 + 18), "bytes": 2 * 12 * 4 + 2 * 3 * 4}
    assert parts["whole"] == {
        name: parts["assemble"][name] + parts["solve"][name] for name in ("flops", "bytes")
    }


def test_sizes_and_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="size"):
        objective.run("ml-3")
    for settings in ({"repeats": 0}, {"rank": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            objective.run(**settings)


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    """A burst of others' work that slows both of a round leaves it alone; the ratio of medians
    would be 3.
    """
    ours, theirs = (3.0, 36.0, 39.0), (1.0, 10.0, 12.0)

    def ratio(*walls):
        spent = {who: [measure.Spent(wall, 0.0) for wall in walls[who]] for who in (0, 1)}
        return measure.Rounds(spent, {}, None).ratio(0, 1)

    assert ratio(ours, theirs) == 3.25
    assert ratio(ours, (1.0, 12.0, 10.0)) == 3.0
