"""The tables that put the audits on trial: their yardsticks against simulation, and what they
count.
"""

import math

import numpy as np
import pytest

from dpmf_jax.errors import UsageError
from experiments.bench import attacks, audit, calibration, guessing


@pytest.mark.parametrize("dimension", [2, 3, 50])
@pytest.mark.parametrize("distance", [0.5, 2.0])
def test_the_exact_price_of_a_pair_under_l2_laplace_noise(dimension, distance):
    """δ(ε) of 400,000 simulated draws, within four standard errors."""
    delta = 1e-2
    epsilon = audit.l2_laplace_epsilon(distance, dimension, delta)
    random = np.random.default_rng(0)
    radius = random.gamma(dimension, size=400_000)
    along, across = random.normal(size=400_000), random.chisquare(dimension - 1, size=400_000)
    cosine = along / np.sqrt(along**2 + across)  # of a direction drawn at random
    loss = np.sqrt(radius**2 + distance**2 + 2 * radius * distance * cosine) - radius
    terms = -np.expm1(np.minimum(epsilon - loss, 0))
    if epsilon == 0:
        assert terms.mean() < delta
    else:
        assert abs(terms.mean() - delta) < 4 * terms.std() / math.sqrt(len(terms))


def test_the_exact_price_nears_the_pure_one_and_never_passes_it():
    values = [audit.l2_laplace_epsilon(1.0, 3, delta) for delta in (1e-2, 1e-5, 1e-9)]
    assert values == sorted(values)
    assert values[-1] <= 1.0
    assert values[-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "trial",
    [
        calibration._null_scale,
        calibration._null_independence,
        calibration._null_density,
        calibration._null_guesses,
    ],
)
def test_p_values_of_what_is_true_are_as_rare_as_they_say(trial):
    row = calibration._row("x", [trial(seed) for seed in range(200)])
    assert row["rejected_at_5%"] <= row["allowed"]
    assert row["violated"] == 0


@pytest.mark.seconds
@pytest.mark.parametrize("delta", calibration.DELTAS)
def test_the_losses_of_a_gaussian_pair_are_not_called_violated_and_are_nearly_so(delta):
    trials = [calibration._null_loss(seed, delta) for seed in range(600)]
    row = calibration._row("x", trials)
    assert (
        0.02 < row["rejected_at_5%"] <= row["allowed"]
    )  # not far below either: the test is of this very δ
    assert row["violated"] == 0


def test_guesses_are_bounded_below_what_is_true_and_closer_by_the_curve(monkeypatch):
    monkeypatch.setattr(guessing, "CANARIES", (256,))
    monkeypatch.setattr(guessing, "SHARES", (0.1, 0.25))
    found = {(row["epsilon"], row["method"]): row["bound"] for row in guessing.rows(repeats=5)}
    assert len(found) == 2 * len(guessing.EPSILONS)
    assert all(0 <= bound < epsilon for (epsilon, _), bound in found.items())
    for epsilon in (4.0, 10.0):
        assert found[epsilon, "the whole curve"] > 1.2 * found[epsilon, "one (ε, δ)"]


@pytest.mark.seconds
def test_attacks_on_a_mechanism_that_ships_stay_below_its_price_and_find_some_of_it(
    monkeypatch, unoptimized
):
    monkeypatch.setattr(attacks, "MECHANISMS", ("user-means",))
    monkeypatch.setattr(attacks, "EPSILONS", (10.0,))
    found = {row["audit"]: row for row in attacks.rows()}
    assert {row["verdict"] for row in found.values()} == {"consistent"}
    assert {row["unit"] for row in found.values()} == {"rating value"}
    assert all(row["bound"] <= row["claimed"] for row in found.values())
    whole, rating, one_run = (
        found[name]["bound"]
        for name in ("privacy loss: δ = 1e-05", "membership: rating", "one run: many canaries")
    )
    assert 1 < one_run < whole
    assert 1 < rating < whole <= 10


def test_a_few_trials_are_refused():
    with pytest.raises(UsageError, match="trials must be at least 10"):
        audit.run(3)


@pytest.mark.slow
def test_the_tables_have_what_they_promise(monkeypatch):
    """`test_privacy_loss` holds the other cases to their share."""
    some = [case for case in audit.cases(big=False) if case.name.startswith("objective")]
    monkeypatch.setattr(audit, "cases", lambda big: some)
    monkeypatch.setattr(calibration, "DELTAS", calibration.DELTAS[:1])
    monkeypatch.setattr(guessing, "rows", list)  # tests above
    monkeypatch.setattr(attacks, "rows", list)
    assert len(some) == 2
    result = audit.run(10, big=False)
    above = 0
    for row in result["rows"]:
        assert row["verdict"] == "consistent"
        assert 0.9 < row["share"] < 1.01
        above += row["share"] > 1 + 1e-6
        assert row["delta"] > 0 or row["share"] <= 1 + 1e-6  # nothing of it is chance
    # Bounds hold with confidence 0.975: three of eight too high is one chance in 1,300.
    assert above <= 2
    assert {row["violated"] for row in result["calibration"]} == {0}
    assert min(row["seen"] for row in result["power"]) > 0.7
