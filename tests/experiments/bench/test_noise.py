"""The benchmark of noise in whole numbers: every contender has its row, and what it adds to δ is
the largest of all defaults.
"""

import math

import pytest

from dpmf_jax.data import synthetic
from dpmf_jax.errors import UsageError
from experiments.bench import generated, goals, noise


@pytest.mark.slow
def test_every_contender_has_a_row_and_every_goal_a_figure(monkeypatch):
    monkeypatch.setitem(generated.SIZES, "tiny", (20, 7, 60))
    monkeypatch.setattr(noise, "DRAWS", 1 << 10)
    told = noise.run(3, "tiny", 1, num_devices=1)
    draws = {(row["draw"], row["generator"], row["scale"]): row for row in told["rows"]}
    assert len(draws) == len(told["rows"]) == 2 * (1 + len(noise.SCALES))
    assert draws[noise.NORMAL, "threefry", None]["ratio"] == 1
    assert [row["scale"] for row in told["tables"]] == [*noise.SCALES]
    assert {row["contender"]: row["ratio"] for row in told["steps"]}[noise.FLOAT] == 1
    assert {row["contender"] for row in told["steps"]} == {noise.FLOAT, noise.WHOLE, noise.SILENT}
    assert told["noise_share"].keys() == {"3"}
    found = {goal.what: goal.figure(told) for goal in goals.GOALS if goal.part == "noise"}
    assert len(found) == 7
    assert all(figure is not None for figure in found.values())
    assert found["a draw with ChaCha20: to a normal"] == max(
        row["ratio"] for key, row in draws.items() if key[:2] == ("rounded normal", "chacha20")
    )


@pytest.mark.seconds
def test_what_is_booked_is_that_of_the_longest_run():
    """That of Langevin dynamics: (1 + e^ε) times the distance of all of its steps."""
    from accounting.loss import distance
    from experiments.fit import mechanisms

    ratings = synthetic.generate(num_users=30, num_items=20, num_ratings=200)
    booked = noise.booked(ratings)
    assert 0 < booked <= 1e-12
    paid = []
    for name in ("gaussian-joint-noise", "dpsgd", "langevin"):
        [*_, (mechanism, steps)] = mechanisms.phases_and_settings(
            name, mechanisms.flags(name), ratings
        )[0]
        guarantee = mechanism.guarantee(steps)
        paid.append((1 + math.exp(guarantee.epsilon)) * distance(guarantee.losses))
    assert min(paid) > 0
    assert booked >= max(paid)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UsageError, match="size"):
        noise.run(size="ml-3")
    with pytest.raises(UsageError, match="at least 1"):
        noise.run(rank=0)
