"""Choosing settings privately: who moves a score, what all of it costs, and what is chosen."""

import dataclasses
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import accounting
import dpmf_jax
from accounting import gaussian, loss, repetition
from accounting.loss import BestOf
from dpmf_jax.data import splits, synthetic
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.protocol import Factors
from dpmf_jax.training import resolve, scored_runs, tune
from tests.cases import CHECKOUT
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation", "books")

SHAPE = (40, 12)
GRID = {"rank": [0, 2]}
QUICK = {"epsilon": 4.0, "steps": 2, "seed": 3}


def ratings():
    return share(0.5, SHAPE)


def predictions(shape=SHAPE, seed=1) -> Factors:
    random = np.random.default_rng(seed)
    users, items = (random.normal(size=(number, 3)).astype(np.float32) for number in shape)
    return Factors(users, items, np.float32(3.0))


SCORE = scored_runs.Score(parts=1000, scale=5000.0, largest=4.0)


# --- the score


def test_a_part_is_the_mean_squared_error_of_a_user_in_parts_of_the_largest():
    scored = ratings()
    factors = predictions()
    parts = scored_runs.score_parts(factors, scored, SCORE)
    user, item = scored.user, scored.item
    exact = np.einsum("nk,nk->n", factors.user_factors[user], factors.item_factors[item]) + 3.0
    errors = (np.clip(exact, 1, 5) - scored.value) ** 2
    for one in range(SHAPE[0]):
        own = errors[user == one]
        wanted = 1000 * min(1.0, own.mean() / 4.0) if len(own) else 0.0
        assert parts[one] == pytest.approx(wanted, abs=1)


@pytest.mark.parametrize("far", [1e9, np.nan, np.inf, -np.inf])
def test_a_user_moves_her_own_part_alone_and_by_at_most_all_of_it(far):
    scored, factors = ratings(), predictions()
    before = scored_runs.score_parts(factors, scored, SCORE)
    changed = np.array(factors.user_factors)
    changed[7] = far
    value = np.where(scored.user == 7, 6 - scored.value, scored.value)
    after = scored_runs.score_parts(
        factors._replace(user_factors=changed), dataclasses.replace(scored, value=value), SCORE
    )
    without = scored_runs.score_parts(factors, scored.take(scored.user != 7, "less one"), SCORE)
    for other in (after, without):
        others = np.arange(SHAPE[0]) != 7
        np.testing.assert_array_equal(other[others], before[others])
        assert 0 <= other[7] <= 1000
    assert without[7] == 0


def test_what_is_held_out_of_others_does_not_depend_on_a_user():
    whole = ratings()
    _, before = splits.by_pair(whole, fraction=0.3, seed=0)
    _, after = splits.by_pair(whole.take(whole.user != 7, "less one"), fraction=0.3, seed=0)
    rest = before.user != 7
    np.testing.assert_array_equal(before.user[rest], after.user)
    np.testing.assert_array_equal(before.item[rest], after.item)


# --- the number of runs


@pytest.mark.parametrize(("mean", "shape"), [(5.0, 0.0), (3.0, 0.5), (4.0, 1.0), (1.0, 0.0)])
def test_the_number_of_runs_has_its_law(mean, shape):
    import random

    drawn = random.Random(5)
    stop = repetition.stop_for(mean, shape)

    def happens(probability: Fraction) -> bool:
        return drawn.randrange(probability.denominator) < probability.numerator

    found = [scored_runs.number_of_runs(happens, stop, shape) for _ in range(4000)]
    counts = np.bincount(np.minimum(found, 12), minlength=13)[1:]
    shares = np.array(repetition.probabilities(stop, shape, 11))
    wanted = 4000 * np.append(shares, 1 - shares.sum())
    kept = wanted > 1e-6
    assert counts[~kept].sum() == 0
    if kept.sum() > 1:
        assert stats.chisquare(counts[kept], wanted[kept]).pvalue > 1e-4


# --- the price


@pytest.fixture(scope="module")
def tuned():
    return dpmf_jax.tune(ratings(), "als", GRID, **QUICK)


def test_the_price_is_the_one_that_was_asked_for(tuned):
    guarantee = tuned.guarantee
    assert guarantee.status == "proved"
    assert guarantee.seeded
    assert 0.99 * 4.0 < guarantee.epsilon <= 4.0
    assert guarantee.unit == "user"
    assert tune.SCORED in guarantee.released


@pytest.mark.seconds
def test_no_run_spends_more_than_the_statement_says():
    made = dpmf_jax.tune(ratings(), "als", {"rank": [0, 1, 2], "steps": [1, 3]}, epsilon=4, seed=1)
    (choice,) = made.guarantee.losses
    assert isinstance(choice, BestOf)
    *_, score = choice.run
    said, told = choice.rho - 1 / (2 * score.noise_multiplier**2), made.settings["tuned"]
    assert len(told["candidates"]) == 6
    spent = [rho_of_a_fit(changed, told["run_epsilon"]) for changed in told["candidates"]]
    assert max(spent) <= said * (1 + 1e-9)
    assert max(spent) == pytest.approx(said, rel=1e-6)
    assert loss.distance(choice.run) > 0


def rho_of_a_fit(changed, epsilon) -> float:
    """What `dpmf fit` would spend with these settings."""
    spec = resolve.spec_named("als")
    flags = resolve.flags_of(spec, {**changed, "epsilon": epsilon})
    phases, _ = resolve.phases_and_settings(spec, flags, ratings())
    rho = accounting.compose(*(one.guarantee(steps) for one, steps in phases)).rho
    assert rho is not None
    return rho


def test_the_page_says_what_a_run_has_of_the_whole():
    text = (CHECKOUT / "docs" / "tuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    told = [(float(whole), 5.0, 0.0, float(run)) for whole, run in rows]
    told += [(4.0, 10.0, 0.0, 2.20), (4.0, 2.0, 0.0, 2.81), (4.0, 5.0, 1.0, 2.05)]
    assert "ten on average a run has 2.20 of 4, with two 2.81" in text
    assert "a run has 2.05 of 4" in text
    for whole, mean, shape, run in told:
        rho = tune._rho_of_a_run(whole, 1e-5, repetition.stop_for(mean, shape), shape)
        assert 0 <= gaussian.epsilon_exact(rho, 1e-5) - run < 0.01


@pytest.mark.seconds
def test_the_scores_have_the_noise_that_is_priced():
    """The released score less the true one, over many seeds, is normal with that scale."""
    made = [
        dpmf_jax.tune(ratings(), "als", {"rank": [0, 1]}, epsilon=2.0, runs=1.0, seed=seed, steps=1)
        for seed in range(30)
    ]
    _, scored = splits.by_pair(ratings(), fraction=0.1, seed=tune.SPLIT)
    gaps = []
    for model in made:
        (choice,) = model.guarantee.losses
        z = choice.run[-1].noise_multiplier
        factors = model.all_factors()
        parts = scored_runs.score_parts(factors, scored, SCORE).sum() / SCORE.parts
        noisy = model.settings["tuned"]["score"] * SHAPE[0] / SCORE.largest
        gaps.append((noisy - parts) / z)
    assert stats.kstest(gaps, "norm").pvalue > 1e-4
    assert stats.chi2.sf(np.sum(np.square(gaps)), len(gaps)) > 1e-4
    assert stats.chi2.cdf(np.sum(np.square(gaps)), len(gaps)) > 1e-4


@pytest.mark.seconds
def test_a_release_of_ratings_is_priced_per_user_too():
    made = dpmf_jax.tune(
        ratings(), "gaussian-joint-noise", {"rank": [1, 2]}, epsilon=4.0, steps=2, seed=3
    )
    assert made.guarantee.unit == "rating value"
    assert made.guarantee.epsilon <= 4.0
    assert made.guarantee.for_user(20).epsilon > 10
    assert math.isfinite(made.guarantee.for_user(20).epsilon)


# --- what is chosen


@pytest.mark.seconds
def test_what_a_fit_held_out_leaves_something_to_score_on():
    train, _ = splits.by_pair(ratings(), fraction=0.1, seed=0)
    made = dpmf_jax.tune(train, "als", GRID, runs=1.0, **QUICK)
    assert len(made.seen[0]) < len(train)


def test_the_same_seed_chooses_the_same(tuned):
    again = dpmf_jax.tune(ratings(), "als", GRID, **QUICK)
    assert again.settings == tuned.settings
    for name, array in tuned.released_arrays.items():
        np.testing.assert_array_equal(again.released_arrays[name], array)


def test_the_model_is_a_fit_of_what_was_chosen_on_what_was_not_held_out(tuned):
    told = tuned.settings["tuned"]
    assert told["chosen"] in told["candidates"]
    assert tuned.settings["rank"] == told["chosen"]["rank"]
    train, scored = splits.by_pair(ratings(), fraction=0.1, seed=tune.SPLIT)
    assert len(scored)
    np.testing.assert_array_equal(tuned.seen[0], train.user)
    np.testing.assert_array_equal(tuned.seen[1], train.item)


@pytest.mark.seconds
def test_with_next_to_no_noise_it_finds_the_better_settings():
    """A step of 1e-6 learns nothing; with these seeds both are tried."""
    lifelike = synthetic.generate(num_users=80, num_items=30, num_ratings=1100, rank=2, seed=1)
    for seed in (1, 3):
        made = dpmf_jax.tune(
            lifelike,
            "gaussian-joint-noise",
            {"learning_rate": [1e-6, 1e-2]},
            epsilon=60.0,
            runs=8.0,
            shape=1.0,
            seed=seed,
            holdout=0.3,
            steps=60,
            rank=2,
        )
        assert made.settings["tuned"]["chosen"] == {"learning_rate": 1e-2}


def test_a_folder_that_holds_a_model_is_refused_before_anything_is_spent(tuned, tmp_path):
    tuned.save(tmp_path / "model")
    begun = []
    with pytest.raises(UsageError, match="there is a model already"):
        dpmf_jax.tune(ratings(), "als", GRID, out=tmp_path / "model", report=begun.append, **QUICK)
    assert begun == []


def test_a_saved_model_says_what_was_tried(tuned, tmp_path):
    loaded = dpmf_jax.load_model(tuned.save(tmp_path / "model").path)
    assert loaded.guarantee == tuned.guarantee
    assert loaded.settings["tuned"] == tuned.settings["tuned"]
    assert "secret number of runs" in (tmp_path / "model" / "PRIVACY.md").read_text()


@pytest.mark.seconds
def test_a_release_is_entered_in_the_ledger_with_its_whole_price():
    from dpmf_jax.models import ledger

    made = dpmf_jax.tune(ratings(), "als", GRID, epsilon=4.0, steps=1, population="tests", runs=1.0)
    (entry,) = ledger.read(ledger.ledger_path())
    assert entry.guarantee == made.guarantee
    assert not made.guarantee.seeded


# --- what has no price


@pytest.mark.parametrize(
    ("mechanism", "candidates", "more", "words"),
    [
        ("als", {}, {}, "nothing to choose"),
        ("als", {"rank": [2]}, {}, "nothing to choose"),
        ("als", {"epsilon": [1.0, 2.0]}, {}, "one for all"),
        ("als", {"rnk": [1, 2]}, {}, "rank"),
        ("als", GRID, {"runs": 0.5}, "runs"),
        ("als", GRID, {"shape": 2.0}, "shape"),
        ("als", GRID, {"holdout": 0.0}, "holdout"),
        ("als", GRID, {"score_share": 1.0}, "score_share"),
        ("als", GRID, {"epsilon": 0.0}, "epsilon"),
        ("als", {"change": ["remove", "replace"]}, {}, "differ in what they promise"),
        ("als-implicit", GRID, {}, "predicts no ratings"),
    ],
)
def test_what_cannot_be_tuned_is_refused(mechanism, candidates, more, words):
    with pytest.raises(UsageError, match=words) as refused:
        dpmf_jax.tune(ratings(), mechanism, candidates, **({"seed": 1} | more))
    assert refused.value.fix


@pytest.mark.parametrize(
    ("mechanism", "candidates", "words"),
    [
        ("gaussian", {"rank": [1, 2]}, "claimed"),
        ("non-private", {"rank": [1, 2]}, "choose a private mechanism|has none"),
        ("als-federated", GRID, "others than a curator"),
        ("dpsgd", {"rank": [1, 2]}, "other than equal Gaussian"),
    ],
)
def test_a_choice_without_a_price_is_refused(mechanism, candidates, words):
    with pytest.raises(PrivacyError, match=words) as refused:
        dpmf_jax.tune(ratings(), mechanism, candidates, seed=1)
    assert refused.value.fix
