"""The benchmark of sweeps: one program for a sweep however many configurations, and a row for every
contender.
"""

import pytest

from dpmf_jax.errors import UsageError
from experiments.bench import generated, sweep


@pytest.mark.slow
def test_a_sweep_compiles_once_whatever_the_number_of_configurations(monkeypatch):
    monkeypatch.setitem(generated.SIZES, "tiny", (20, 7, 60))
    for number in (3, 5):
        told = sweep.run(number, 3, "tiny", 1, num_devices=1)
        rows = {row["contender"]: row for row in told["rows"]}
        assert rows["sweep"]["programs"] == (
            1 if number == 3 else 0
        )  # the second sweep has the first one's program
        assert (rows["sweep"]["compile_ms"] > 0) == (number == 3)
        assert rows[sweep.SEPARATE]["ratio"] == 1
        assert [floor["of"] for floor in told["floors"]] == ["sweep"]
        assert {row["contender"] for row in told["rows"]} > {
            told["goal"]["contender"],
            sweep.AT_ONCE,
            "vmap, one device",
        }
        assert all(row["ms"] >= row["fastest_ms"] > 0 for row in told["rows"])


def test_sizes_and_numbers_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="size"):
        sweep.run(size="ml-3")
    with pytest.raises(UsageError, match="at least 1"):
        sweep.run(num_configurations=0)
