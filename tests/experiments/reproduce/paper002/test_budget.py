"""The comparison at one price: what is searched, what is priced, and that every row is of the same
ε, δ and unit.
"""

import math

import pytest

from dpmf_jax.data import synthetic
from dpmf_jax.models import metrics
from experiments.reproduce import pictures
from experiments.reproduce.paper002 import budget

RATINGS = synthetic.generate(num_users=60, num_items=25, num_ratings=600)
SMALL = {
    "sketch, γ = 2": {"pace": (1.0, 3.0), "regularization": (1.0, 10.0)},
    "Langevin, T = 1": {"sampling": (0.03,), "rank": (1, 2)},
}


@pytest.fixture(scope="module")
def data():
    return budget.Data.of(RATINGS)


@pytest.fixture(scope="module")
def compared():
    """Two methods, a small search, one ε."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        small = {
            name: budget.METHODS[name]._replace(searched=searched)
            for name, searched in SMALL.items()
        }
        patch.setattr(budget, "METHODS", small)
        return budget.compare(RATINGS, (0, 1), said.append, epsilons=(4.0,)), said


@pytest.mark.seconds
@pytest.mark.parametrize("series", budget.METHODS)
def test_a_run_costs_at_most_epsilon_and_not_much_less(series):
    """Settings at the edges of the search; what is priced is the mechanism that is trained."""
    for epsilon, sampling in ((1.0, 0.03), (4.0, 0.1)):
        setting = budget.Setting(pace=10.0, sampling=sampling)
        promised = budget.guarantee(budget.METHODS[series], RATINGS, epsilon, setting)
        assert 0.99 * epsilon < promised.epsilon <= epsilon
        assert (promised.delta, promised.unit, promised.status) == (
            budget.DELTA,
            budget.UNIT,
            "proved",
        )


def test_too_little_noise_is_refused(monkeypatch):
    monkeypatch.setattr(budget, "SAFE", 0.9)
    budget.multiplier.cache_clear()
    try:
        with pytest.raises(ValueError, match="more than 4"):
            budget.guarantee(budget.METHODS["dense DP-SGD"], RATINGS, 4.0, budget.Setting())
    finally:
        budget.multiplier.cache_clear()


@pytest.mark.seconds
def test_langevin_has_the_step_size_of_its_price_at_temperature_one():
    setting = budget.Setting(sampling=0.03, pace=123.0)
    made, steps = budget.METHODS["Langevin, T = 1"].mechanism(RATINGS, 4.0, setting)
    params = made.update.args[0]
    rate, z = float(params.learning_rates[0]), budget.multiplier(4.0, 0.03)
    assert steps == budget.STEPS
    assert z == pytest.approx(0.03 * math.sqrt(2 / rate), rel=1e-4)
    # standard deviation of a step's noise
    moved = rate / float(params.rate) * float(params.noise_scale) * float(params.grid.unit)
    assert moved == pytest.approx(math.sqrt(2 * rate), rel=1e-4)


def test_the_search_takes_one_setting_after_the_other(monkeypatch, data):
    """The error is a function that is known: |log pace/30| + |rank - 4| + …, least at the grid's
    corner.
    """

    def pretended(made, data, seed):
        assert seed == budget.SEARCH_SEED
        return {
            "rmse_test": (
                abs(math.log10(made[0].pace / 30)) + abs(made[0].rank - 2) + made[0].regularization
            )
        }

    monkeypatch.setattr(budget, "errors", pretended)
    monkeypatch.setattr(
        budget.Method, "mechanism", lambda method, ratings, epsilon, setting: (setting, 1)
    )
    best, error, tried = budget.search(budget.METHODS["joint noise"], 4.0, data)
    assert best == budget.Setting(pace=30.0, regularization=0.1, rank=2)
    assert error == pytest.approx(0.1)
    assert tried == 5 + 2 + 1


@pytest.mark.seconds
def test_every_row_has_its_price_and_its_controls(compared):
    told, said = compared
    assert len(said) == 2
    series = {row.series for row in told.rows}
    assert series == {
        "sketch, γ = 2",
        "Langevin, T = 1",
        budget.GLOBAL,
        budget.MEANS,
        budget.PRICED,
    }
    assert len(told.rows) == 2 * len(series)
    settings = {one["series"]: one for one in told.settings}
    assert set(settings) == series
    for row in told.rows:
        assert row.result == "informative"
        assert math.isfinite(row.value)
        free = row.series in (budget.GLOBAL, budget.MEANS)
        assert (row.kind, row.x, len(row.values)) == (
            ("level", 0.0, 1) if free else ("end", 4.0, 2)
        )
        headline = settings[row.series]["headline"]
        assert (
            headline == "not private"
            if free
            else "δ = 1e-06" in headline and "presence" in headline
        )
    assert {name: one["tried"] for name, one in told.more["searches"].items()} == {
        f"{name}, ε = 4": 3 for name in SMALL
    } | {"Langevin, T = 1, ε = 4": 2}
    assert told.more["searches"]["Langevin, T = 1, ε = 4"].keys() == {
        "sampling",
        "rank",
        "rmse",
        "tried",
    }


def test_the_ratings_that_are_compared_are_not_searched_on(monkeypatch):
    seen = []

    def remembered(method, epsilon, data):
        seen.append(data)
        raise KeyboardInterrupt

    monkeypatch.setattr(budget, "search", remembered)
    real = synthetic.generate(num_users=60, num_items=25, num_ratings=600, seed=9)
    with pytest.raises(KeyboardInterrupt):
        budget.compare(real, (0,))
    (data,) = seen
    assert (data.train.num_users, data.train.num_items) == (60, 25)
    assert len(data.train) + len(data.test) == 600
    own = {(user, item) for user, item in zip(real.user.tolist(), real.item.tolist(), strict=True)}
    other = [
        pair in own
        for part in data[:2]
        for pair in zip(part.user.tolist(), part.item.tolist(), strict=True)
    ]
    assert 0.2 < sum(other) / 600 < 0.8  # other people, who happen to have rated some of the same


@pytest.mark.seconds
def test_errors_are_those_of_the_whole_model_held_out_and_trained_on(data):
    made = budget.METHODS["joint noise"].mechanism(data.train, 4.0, budget.Setting())
    found, again, other = (budget.errors(made, data, seed) for seed in (0, 0, 1))
    assert found == again
    assert found != other
    assert set(found) == set(budget.AXES)
    assert found["rmse_test"] < 2.5
    silent = budget.errors(
        (made[0]._replace(noise=made[0].noise._replace()), 0), data, 0
    )  # no step: the start
    low, high = RATINGS.rating_range
    assert silent["rmse_test"] == pytest.approx(
        math.sqrt(float(((data.test.value - (low + high) / 2) ** 2).mean())), abs=0.3
    )
    assert metrics.rmse is budget.metrics.rmse


@pytest.mark.seconds
def test_the_picture_has_every_series(compared):
    outcome, _said = compared
    pytest.importorskip("matplotlib")
    drawn = budget.picture(outcome.rows, "002/budget")
    assert drawn == budget.picture(outcome.rows, "002/budget")
    for text in ("sketch, γ = 2", "ε = 4", "not private", pictures.NOTICE):
        assert text in drawn
