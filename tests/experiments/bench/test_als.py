"""The benchmark of `als`: a row for every contender, part and goal, and what a pass must cost."""

import importlib.util

import numpy as np
import pytest

from dpmf_jax.errors import UsageError
from experiments.bench import als, generated, goals
from experiments.bench import command as bench_command

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZE = USERS, ITEMS, RATINGS = 60, 40, 900
THERE = importlib.util.find_spec("implicit") is not None
PARTS = [
    *("query", "residual norms", "item sums", "gram", "noise", "estimates"),
    *("solve", "normal equations", "elimination"),
]


@pytest.fixture(scope="module")
def result():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(generated.SIZES, "tiny", SIZE)
        patch.setattr(als, "RATINGS", (1_000, 2_000))
        yield als.run("tiny", (2, 3), 2, 2_000, large=SIZE, num_devices=1)


@pytest.mark.slow
def test_a_small_run_has_a_row_for_every_contender_and_part(result):
    contenders = (als.OURS, als.REFERENCE, als.EXACT) if THERE else (als.OURS,)
    rows = {(row["rank"], row["contender"]): row for row in result["rows"]}
    assert list(rows) == [(rank, name) for rank in (2, 3) for name in contenders]
    assert result["skipped"] == ([] if THERE else [als.REFERENCE, als.EXACT])
    for (_rank, name), row in rows.items():
        assert row["ms"] > 0
        assert (row["ratio"] == 1) == (name == als.REFERENCE)
        assert (row["compile_ms"] is None) == (name != als.OURS)
        assert row["programs"] == (1 if name == als.OURS else None)
    assert [(row["rank"], row["part"]) for row in result["parts"]] == [
        (rank, part) for rank in (2, 3) for part in PARTS
    ]
    assert [floor["of"] for floor in result["floors"]] == ["rank 2, jax", "rank 3, jax"]
    assert all(floor["floor_ms"] > 0 for floor in result["floors"])
    assert [row["value"] for row in result["growth"]] == [1_000, 2_000]
    assert np.isfinite(result["exponents"]["ratings"]["all"])
    (large,) = result["large"]
    assert large["peak_mb"] > 100
    assert large["ms"] > 0
    assert bench_command.render(result)


@pytest.mark.slow
def test_every_goal_has_its_figure(result):
    """As if the ranks of the small run were those of the goals."""
    ranks = dict(zip((2, 3), als.RANKS, strict=True))
    rows = [row | {"rank": ranks[row["rank"]]} for row in result["rows"]]
    ours = {goal.what for goal in goals.GOALS if goal.part == "als"}
    kept = [row for row in goals.rows({"als": result | {"rows": rows}}) if row["what"] in ours]
    assert len(kept) == len(ours) == 6
    missing = [row["what"] for row in kept if row["found"] is None]
    assert THERE or all("implicit" in what for what in missing)
    assert not (THERE and missing)


@pytest.mark.slow
def test_the_parts_are_what_a_pass_is_made_of():
    """Elimination of the normal equations is the solution; the query's sums are those of parts."""
    import jax

    one = als.begun(generated.ratings(SIZE), 3, 1)
    made = {name: jax.jit(fn)(*given) for name, (fn, given) in als._programs_of_parts(one).items()}
    users = made["solve"].users
    np.testing.assert_array_equal(users.units, one.state.private.users.units)
    units = np.round(np.asarray(made["elimination"])[:, 1:] * 2.0**11)
    np.testing.assert_array_equal(units, users.units)
    assert made["query"][0].shape == made["item sums"].shape == (ITEMS, 3)
    assert made["query"][1].shape == made["gram"].shape == (3, 3)
    assert made["estimates"].items.units.shape == (ITEMS, 3)


def test_what_a_pass_must_cost():
    assert als.pass_costs(num_users=3, num_items=5, num_ratings=7, rank=2, stored_bytes=100) == {
        "flops": 7 * (9 + 12) + 3 * 9,
        "bytes": 100 + 8 * (3 * 3 + 5 * 5),
    }


def test_sizes_and_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="size"):
        als.run("ml-3")
    for settings in ({"repeats": 0}, {"ranks": (0,)}):
        with pytest.raises(UsageError, match="at least 1"):
            als.run(**settings)
