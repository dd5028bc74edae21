"""The benchmark of local DP: its loops compute what the mechanism computes, and a row stands for
every contender.
"""

import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.data import synthetic
from dpmf_jax.errors import UsageError
from experiments.bench import command as bench_command
from experiments.bench import generated, local, local_loops

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS, RANK, Q = 60, 25, 3, 7


@pytest.fixture(scope="module")
def ratings():
    return synthetic.generate(num_users=USERS, num_items=ITEMS, num_ratings=400)


@pytest.fixture(scope="module")
def data(ratings):
    return layout.make(ratings, num_devices=1)


def begun(variant, ratings, data):
    mechanism = local._mechanism(variant, RANK, Q)
    state, key, _once = local._started(mechanism, data)
    return mechanism, key, state, local._loop_of(variant, ratings, state, Q)


@pytest.mark.seconds
@pytest.mark.parametrize("variant", local.VARIANTS)
def test_the_loops_compute_the_round_of_the_mechanism(variant, ratings, data):
    mechanism, key, state, loop = begun(variant, ratings, data)
    everybody = np.arange(USERS)
    differences = local._differences(mechanism, key, state, data, loop, everybody)
    assert set(differences) == {"entries", "item_factors", "user_factors"}
    assert max(differences.values()) < 1e-5
    if variant != "unprojected":  # both ways through the users move them alike
        moved, again = np.empty_like(loop.users), np.empty_like(loop.users)
        local_loops.user_entries(loop, everybody, everybody % Q, everybody % RANK, moved)
        local_loops.user_steps(loop, everybody, again)
        np.testing.assert_array_equal(moved, again)


def a_rating(loop):
    value = loop.ratings.value.copy()
    value[loop.starts[5]] += 0.5
    return loop._replace(
        ratings=type(loop.ratings)(
            *(loop.ratings.user, loop.ratings.item, value),
            *(loop.ratings.users, loop.ratings.items, loop.ratings.rating_range),
        )
    )


PLANTED = {
    "a rating": a_rating,
    "an entry of Φ": lambda loop: loop._replace(phi=loop.phi * np.float32(1.01)),
    "the lift": lambda loop: loop._replace(factor=(loop.factor[0] * np.float32(1.01), True)),
    "the users": lambda loop: loop._replace(users=loop.users[::-1].copy()),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_disagreement_is_refused(planted, ratings, data):
    mechanism, key, state, loop = begun("published", ratings, data)
    with pytest.raises(FloatingPointError, match="differ"):
        local._differences(mechanism, key, state, data, PLANTED[planted](loop), np.arange(USERS))


@pytest.mark.slow
def test_a_small_run_has_a_row_for_every_contender_and_its_peak(monkeypatch):
    monkeypatch.setitem(generated.SIZES, "tiny", (USERS, ITEMS, 400))
    monkeypatch.delitem(local.VARIANTS, "fresh")  # two processes fewer
    told = local.run("tiny", RANK, Q, 1, num_devices=1)
    rows = {(row["variant"], row["contender"]): row for row in told["rows"]}
    assert list(rows) == [
        ("published", "jax"),
        ("published", "NumPy, one pass"),
        ("published", "NumPy, two passes"),
        ("unprojected", "jax"),
        ("unprojected", "NumPy, two passes"),
    ]
    assert set(told["variants"]) == set(told["whole_loop_ms"]) == set(local.VARIANTS)
    for (_, name), row in rows.items():
        assert row["ms"] >= row["fastest_ms"] > 0
        assert (row["ratio"] == 1) == (name == "NumPy, two passes")
        assert row["peak_mb"] > row["ratings_mb"] > 400 * 12 / 2**20
        assert (row["compile_ms"] is None) == (name != "jax")
    assert list(told["peak_after"]) == ["reading", "layout", "start", "rounds"]
    peaks = list(told["peak_after"].values())
    assert peaks == sorted(peaks)
    assert peaks[-1] == rows["published", "jax"]["peak_mb"]
    assert told["largest_difference"]["entries"] < 1e-5
    assert [floor["of"] for floor in told["floors"]] == ["published, jax", "unprojected, jax"]
    assert bench_command.render(told)


def test_what_a_round_must_cost():
    told = local.one_round(num_users=10, num_items=6, num_ratings=40, rank=3, num_projected=2)
    assert told == {
        "flops": 40 * (2 * 6 + 2) + 2 * 2 * 3 * 6 + 2 * 2 * 2 * 3,
        "bytes": 8 * 40 + 8 * 3 * 16,
    }
    assert local.one_round(10, 6, 40, 3, 0) == {"flops": 40 * 12, "bytes": told["bytes"]}


def test_the_time_of_some_users_is_scaled_up_to_all(monkeypatch, ratings, data):
    """A clock that ticks once a reading: whatever is between two readings takes one second."""
    _mechanism, _key, _state, loop = begun("published", ratings, data)
    ticks = iter(range(100))
    monkeypatch.setattr(local_loops.time, "perf_counter", lambda: float(next(ticks)))
    some = np.arange(USERS // 4)
    random = np.random.default_rng(0)
    assert local_loops.numpy_round(loop, some, random, one_pass=False) == 2 * 4 + 2


def test_sizes_and_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="size"):
        local.run("ml-3")
    for settings in ({"repeats": 0}, {"rank": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            local.run(**settings)
    for rows in (0, 1_683):
        with pytest.raises(UsageError, match="rows of Φ"):
            local.run("ml-100k", num_projected=rows)
