"""The divergence (19): known Gaussians, coverage of its bootstrap, and which rows are compared."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from audits.release import kl
from dpmf_jax.data.splits import rare
from tests.cases.online import sized

FALSE_ALARM = 1e-4
NUMBERS = st.floats(-100, 100).map(lambda x: round(x, 3))


def with_moments(mean: float, deviation: float) -> np.ndarray:
    """Four errors of exactly this mean and (biased) standard deviation."""
    return mean + deviation * np.array([-1.0, 1.0, -1.0, 1.0])


@pytest.mark.parametrize(
    ("train", "test"),
    [((0.0, 1.0), (0.0, 1.0)), ((0.1, 0.8), (-0.2, 0.9)), ((0.0, 2.0), (0.5, 0.5))],
)
def test_it_is_the_divergence_of_the_two_gaussians(train, test):
    """By numerical integration of p·log(p/q)."""
    p, q = scipy.stats.norm(*train), scipy.stats.norm(*test)
    ends = train[0] - 12 * train[1], train[0] + 12 * train[1]
    expected, _ = scipy.integrate.quad(
        lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), *ends, epsabs=1e-12
    )
    assert kl.gaussian_kl(with_moments(*train), with_moments(*test)) == pytest.approx(
        expected, abs=1e-9
    )


def test_it_is_that_of_the_paper_letter_by_letter():
    train, test = np.array([0.3, -0.2, 0.9, 0.1]), np.array([1.0, -2.0, 0.4])
    (m, s), (m_te, s_te) = ((e.mean(), ((e - e.mean()) ** 2).mean()) for e in (train, test))
    expected = (s / s_te + (m - m_te) ** 2 / s_te - 1 + math.log(s_te / s)) / 2
    assert kl.gaussian_kl(train, test) == pytest.approx(expected, rel=1e-12)


@given(
    st.lists(NUMBERS, min_size=2, max_size=20), st.lists(NUMBERS, min_size=2, max_size=20), NUMBERS
)
def test_it_is_never_negative_and_does_not_mind_a_shift_or_a_scale_of_both(train, test, shift):
    train, test = np.array(train), np.array(test)
    found = kl.gaussian_kl(train, test)
    assert found >= 0
    if min(train.std(), test.std()) > 0.1:
        assert kl.gaussian_kl(3 * train + shift, 3 * test + shift) == pytest.approx(
            found, rel=1e-6, abs=1e-9
        )
    assert kl.gaussian_kl(train, train) == 0


def test_small_divergences_do_not_drown():
    assert kl.gaussian_kl(with_moments(0, 1 + 1e-7), with_moments(0, 1)) == pytest.approx(
        1e-14, rel=1e-2
    )


def test_errors_without_spread():
    ones, twos, both = np.ones(2), np.full(2, 2.0), np.array([1.0, 2.0])
    assert kl.gaussian_kl(ones, ones) == 0
    assert (
        kl.gaussian_kl(both, ones)
        == kl.gaussian_kl(ones, twos)
        == kl.gaussian_kl(ones, both)
        == math.inf
    )
    found = kl.bootstrap(both, both, seed=0, draws=50)
    assert (found.value, found.lower, found.upper) == (0, 0, math.inf)


def test_it_bounds_nothing():
    """Errors of one shape per side whose fits coincide: the divergence is 0, and one look tells the
    sides apart.
    """
    train, test = np.array([-1.0, 1.0]), np.array([-(2**0.5), 0.0, 0.0, 2**0.5])
    assert kl.gaussian_kl(train, test) == pytest.approx(0, abs=1e-12)
    assert not set(train) & set(test)


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [False, True])
def test_the_interval_covers_the_truth_at_its_rate(grouped):
    """90% of 300 samples of two Gaussians, within what FALSE_ALARM allows: below 83% or above 96%
    would be seen. Where nine errors of a user are all equal, only the interval that draws whole
    users covers so many.
    """
    random, train, test, runs = np.random.default_rng(5), (0.0, 1.0), (0.4, 1.3), 300
    truth = kl.gaussian_kl(with_moments(*train), with_moments(*test))
    hit = {"rows": 0, "users": 0}
    for run in range(runs):
        errors = [random.normal(*law, 400) for law in (train, test)]
        owners = [np.arange(400), np.arange(400) + 400]
        if grouped:
            errors, owners = ([np.repeat(part, 9) for part in parts] for parts in (errors, owners))
        users = {"rows": {}, "users": {"train_users": owners[0], "test_users": owners[1]}}
        for name in users if grouped else ["rows"]:
            found = kl.bootstrap(*errors, seed=run, confidence=0.9, draws=100, **users[name])
            assert found.lower <= found.upper
            assert found.value == kl.gaussian_kl(*errors)
            hit[name] += found.lower <= truth <= found.upper
    held = hit["users"] if grouped else hit["rows"]
    assert scipy.stats.binomtest(held, runs, 0.90).pvalue > FALSE_ALARM
    if grouped:
        assert hit["rows"] < 0.6 * runs


def test_the_bootstrap_is_that_of_its_seed_and_narrows_with_confidence():
    random = np.random.default_rng(1)
    errors = random.normal(0, 1, 200), random.normal(0.2, 1.2, 100)
    wide, again, narrow = (kl.bootstrap(*errors, seed=3, confidence=c) for c in (0.99, 0.99, 0.5))
    assert wide == again
    assert wide != kl.bootstrap(*errors, seed=4, confidence=0.99)
    assert wide.lower < narrow.lower < narrow.value < narrow.upper < wide.upper
    assert (wide.confidence, narrow.confidence) == (0.99, 0.5)


def test_filters():
    """The paper's leaves the training rows alone; the other treats both sides alike."""
    train, test = sized(150, seed=3), sized(80, seed=4)
    per_user, per_item = (
        np.bincount(train.user, minlength=20),
        np.bincount(train.item, minlength=15),
    )
    enough = [(per_user[side.user] >= 9) & (per_item[side.item] >= 9) for side in (train, test)]
    assert all(0 < part.sum() < len(part) for part in enough)
    for rows, expected in (
        (kl.paper_rows(train, test, 9), [np.ones(150, bool), enough[1]]),
        (kl.same_rows(train, test, 9), enough),
    ):
        for found, wanted in zip(rows, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_papers_filter_alone_makes_a_divergence_where_nothing_was_learnt():
    """Errors that depend on whether a row is rare and not on its side: 0 with one filter, positive
    with the paper's.
    """
    random = np.random.default_rng(0)
    train, test = sized(200, seed=3), sized(200, seed=3)
    spread = 1 + 2 * rare(train, train, 12)
    errors = spread * random.normal(size=200)
    same, paper = kl.same_rows(train, test, 12), kl.paper_rows(train, test, 12)
    assert kl.gaussian_kl(errors[same.train], errors[same.test]) == 0
    assert kl.gaussian_kl(errors[paper.train], errors[paper.test]) > 0.1


def test_top_users_are_those_with_most_ratings():
    train, test = sized(150, seed=3), sized(80, seed=4)
    count = np.bincount(train.user, minlength=20)
    top = kl.top_users(train, 4)
    assert count[top].tolist() == sorted(count, reverse=True)[:4]
    assert top.tolist() == sorted(range(20), key=lambda user: (-count[user], user))[:4]
    rows = kl.of_users(train, test, top)
    assert rows.train.sum() == count[top].sum()
    assert rows.test.tolist() == [user in top for user in test.user]


def test_nothing_given_is_changed():
    train = sized()
    before = train.sha256(), dataclasses.replace(train).value.copy()
    errors = np.random.default_rng(0).normal(size=(2, 50))
    kept = errors.copy()
    kl.bootstrap(*errors, seed=0, draws=5, train_users=np.arange(50), test_users=np.arange(50))
    kl.same_rows(train, train)
    assert train.sha256() == before[0]
    np.testing.assert_array_equal(errors, kept)


def test_what_makes_no_sense_is_refused():
    good = np.array([0.0, 1.0])
    refused = {
        "train_errors must be at least two": lambda: kl.gaussian_kl(good[:1], good),
        "test_errors must be at least two": lambda: kl.gaussian_kl(good, np.array([0.0, np.nan])),
        "confidence must be between": lambda: kl.bootstrap(good, good, seed=0, confidence=1.0),
        "draws must be an integer of at least 1": lambda: kl.bootstrap(good, good, seed=0, draws=0),
        "both or neither": lambda: kl.bootstrap(good, good, seed=0, train_users=np.arange(2)),
        "as many as": lambda: kl.bootstrap(
            good, good, seed=0, train_users=np.arange(2), test_users=np.arange(3)
        ),
        "num must be from 1": lambda: kl.top_users(sized(), 0),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
