"""The benchmark of paper 002: its loops compute what the mechanisms compute, and a row stands for
every contender.
"""

import os

import numpy as np
import pytest

from dpmf_jax.errors import UsageError
from experiments.bench import command as bench_command
from experiments.bench import generated, measure, online

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RATINGS, RANK = 60, 25, 400, 3
MEMORY = (3_000, 50, 9_000)


@pytest.fixture(scope="module")
def problem():
    return online.make_problem((USERS, ITEMS, RATINGS), RANK, 2.0)


@pytest.fixture(scope="module")
def first(problem):
    pytest.importorskip("numba")
    return {
        who: online.CONTENDERS[who](problem).call()
        for who in online.CONTENDERS
        if who[1] != online.SURPRISE
    }


def test_all_contenders_compute_the_same_epochs(first):
    differences = online._differences(first)
    assert set(differences) == {
        "dense, jax dense",
        "sketch, jax sketch",
        "sketch, numba, hashes at once",
    }
    assert max(differences.values()) < 1e-5


def test_epochs_move_the_parameters(problem, first):
    for (part, name), after in first.items():
        before = online._parameters(part, problem.states[part])
        assert max(np.abs(a - b).max() for a, b in zip(after, before, strict=True)) > 0.01, (
            part,
            name,
        )


@pytest.mark.parametrize("part", ["dense", "sketch"])
def test_a_planted_disagreement_is_refused(part, problem, first):
    left = problem.left.copy()
    left[7] += 0.5
    planted = online.CONTENDERS[part, online.REFERENCE](problem._replace(left=left)).call()
    with pytest.raises(FloatingPointError, match="differ"):
        online._differences(first | {(part, online.REFERENCE): planted})


def test_surprise_has_the_same_rule(problem):
    """From its own start, in its own order: user by user, items of each as they are stored."""
    pytest.importorskip("numba")
    pytest.importorskip("surprise")
    theirs = online.CONTENDERS["dense", online.SURPRISE](problem).call()
    rng = np.random.RandomState(0)
    users, items = (rng.normal(0, 0.1, (num, RANK)).astype(np.float32) for num in (USERS, ITEMS))
    ratings, left = problem.ratings, np.empty(RATINGS, np.float32)
    left[problem.order] = problem.left
    for _ in range(online.EPOCHS):
        rates = np.float32(online.LEARNING_RATE), np.float32(online.REGULARIZATION)
        online.kernels()["dense"](users, items, ratings.user, ratings.item, left, *rates)
    for mine, other in zip((users, items), theirs, strict=True):
        np.testing.assert_allclose(other, mine, atol=1e-5)


@pytest.mark.slow
def test_a_small_run_has_a_row_for_every_contender(monkeypatch):
    monkeypatch.setitem(generated.SIZES, "tiny", (USERS, ITEMS, RATINGS))
    told = online.run("tiny", RANK, 2, memory_size=MEMORY)
    rows = {(row["part"], row["contender"]): row for row in told["rows"]}
    there = [who for who in online.CONTENDERS if online._installed(online.NEEDS.get(who[1]))]
    assert list(rows) == there
    for (part, name), row in rows.items():
        assert row["ms"] > 0
        assert row["spread_ms"] >= 0
        assert row["peak_mb"] > RATINGS * 12 / 2**20
        if name.startswith("jax"):
            assert row["compile_ms"] > 0
        if (part, online.REFERENCE) in rows:
            assert row["ratio"] > 0
            assert row["ratio"] == 1 or name != online.REFERENCE
    assert set(told["left_out"]) == {
        online.NEEDS[name] for _, name in set(online.CONTENDERS) - set(there)
    }
    dense, sketch = told["memory"]
    assert dense["parameters_mb"] == pytest.approx((MEMORY[0] + MEMORY[1]) * RANK * 4 / 2**20)
    assert sketch["parameters_mb"] == pytest.approx(
        dense["parameters_mb"] / online.MEMORY_GAIN, rel=1e-3
    )
    for row in (dense, sketch):
        assert 0 <= row["growth_mb"] < row["peak_mb"]
    assert [floor["of"] for floor in told["floors"]] == ["jax dense", "jax sketch"]
    assert bench_command.render(told)


def test_what_an_epoch_must_cost():
    assert online.epoch(100, 5, 0) == {"flops": 8 * 5 * 100, "bytes": 1_200}
    assert (
        online.epoch(100, 5, 4)["flops"] == (8 + 16) * 5 * 100
    )  # read 2 × 4 cells a component, and written


def test_peers_that_are_not_there_are_left_out(monkeypatch, problem):
    monkeypatch.setattr(online, "_installed", lambda package: package is None)
    made, growth, differences = online._contenders(problem)
    assert [name for _, name in made] == ["jax dense", "jax sketch"] == [name for _, name in growth]
    assert differences == {}


def test_sizes_and_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="size"):
        online.run("ml-3")
    for settings in ({"repeats": 0}, {"rank": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            online.run(**settings)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="only Linux lets a process choose its cores"
)
def test_contenders_of_one_thread_have_one_core_and_give_the_others_back():
    before = os.sched_getaffinity(0)
    assert measure.one_core()(lambda: os.sched_getaffinity(0))() == {min(before)}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(UsageError):
        online.run("ml-3")
    assert os.sched_getaffinity(0) == before
