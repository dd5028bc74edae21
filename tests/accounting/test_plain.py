"""Plain sentences say what a guarantee says: how often a guess is right, and about what."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from accounting import gaussian, plain, priced
from accounting.loss import Gaussian, Pure, SubsampledGaussian
from accounting.price import exact
from tests.cases import CHECKOUT
from tests.cases.ledger import VALUE, guarantee

PRESENCE = (
    "two data sets, one of which has one rating more than the other, of any user and item, with any"
    " value"
)
REPLACED = (
    "any change to all of one user's ratings, and to which items were rated; taking part is not"
    " hidden"
)


def test_a_guess_about_gaussian_steps_is_right_as_often_as_the_best_test():
    """Of one step, and of many: the sum of the log-ratios is the best test, and is drawn here."""
    random = np.random.default_rng(0)
    for z, steps in ((1.0, 1), (2.0, 9), (0.5, 4)):
        mean = np.full(steps, 1 / z)
        side = random.integers(0, 2, 200_000)
        seen = random.standard_normal((200_000, steps)) + side[:, None] * mean
        guess = (seen - mean / 2) @ mean > 0
        share = plain.right_guesses((Gaussian(noise_multiplier=z, num_steps=steps),), 50.0, 0.0)
        assert share == pytest.approx(norm.cdf(math.sqrt(steps) / z / 2), abs=1e-12)
        assert np.mean(guess == side) == pytest.approx(share, abs=0.004)


def test_a_guess_about_a_report_of_one_bit_is_right_as_often_as_the_bit():
    epsilon = 1.2
    share = plain.right_guesses((Pure(epsilon=epsilon, num_rounds=1),), epsilon, 0.0)
    assert share == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), rel=1e-12)
    assert plain.right_guesses((Pure(epsilon=0.1, num_rounds=1),), 0.1, 0.0) < 0.525


@pytest.mark.parametrize(
    ("losses", "epsilon", "delta"),
    [
        ((), 3.0, 1e-5),
        ((SubsampledGaussian(noise_multiplier=1.0, sampling_rate=0.1, num_steps=9),), 3.0, 1e-5),
        ((Gaussian(noise_multiplier=1.0, num_steps=1), Pure(epsilon=1.0, num_rounds=1)), 3.0, 1e-5),
        ((Gaussian(noise_multiplier=0.01, num_steps=1),), 3.0, 1e-5),
    ],
)
def test_elsewhere_the_price_bounds_it(losses, epsilon, delta):
    expected = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert plain.right_guesses(losses, epsilon, delta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("delta", "people"), [(0.5, 500), (0.004, 4), (1e-3, None), (1e-5, None)])
def test_a_large_delta_is_told_in_people(delta, people):
    """1e-3 itself, and less, is not; of more, as many people in 1,000 as may be shown whole."""
    told = " ".join(plain.sentences(guarantee(delta=delta)))
    assert ("is large" in told) == (people is not None)
    assert people is None or f"to show {people} in 1,000 ratings," in told


def rows_of(page, heading):
    """The cells of the table under a heading, without its two first lines."""
    text = (CHECKOUT / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_guesses_of_the_page_are_these():
    rows = rows_of("docs/choosing.md", "What ε means")
    assert len(rows) == 7
    for epsilon, normal, pure in rows:
        price = float(epsilon)
        z = gaussian.solve_noise_multiplier(epsilon=price, delta=1e-5, num_steps=1)
        for cell, losses in (
            (normal, (Gaussian(noise_multiplier=z, num_steps=1),)),
            (pure, (Pure(epsilon=price, num_rounds=1),)),
        ):
            share = plain.right_guesses(losses, price, 0.0)
            if cell == "nearly always":
                assert share >= plain.NEARLY_ALWAYS
            else:
                assert int(cell.split()[0]) == math.ceil(100 * share)


def test_the_sums_of_the_page_are_these():
    rows = rows_of("docs/choosing.md", "How releases add up")
    assert len(rows) == 3
    for epsilon, *totals in rows:
        z = gaussian.solve_noise_multiplier(epsilon=float(epsilon), delta=1e-5, num_steps=1)
        for number, total in zip((2, 4, 12, 52), totals, strict=True):
            whole = (Gaussian(noise_multiplier=z, num_steps=number),)
            assert float(total) == pytest.approx(exact(whole, 1e-5), rel=0.005)
    for number, each in ((4, 1.82), (12, 0.99), (52, 0.44)):
        z = gaussian.solve_noise_multiplier(epsilon=each, delta=1e-5, num_steps=1)
        assert 3.8 < exact((Gaussian(noise_multiplier=z, num_steps=number),), 1e-5) <= 4


def sentences_of(**fields):
    return "\n".join(plain.sentences(guarantee(**fields)))


def test_what_is_protected_follows_from_the_relation():
    one = Gaussian(noise_multiplier=2.0, num_steps=1)
    value = sentences_of()
    assert "protected is the value of every single rating" in value
    assert "not protected is who rated what, nor what is true of many people alike" in value
    presence = sentences_of(unit="rating presence", relation=PRESENCE)
    assert "protected is every single rating: whether it is there, and its value" in presence
    user = "\n".join(
        plain.sentences(
            priced(
                mechanism="als",
                losses=(one,),
                delta=1e-5,
                unit="user",
                relation=REPLACED,
                released=("item factors",),
                trust_model="everybody for themselves",
                status="proved",
            )
        )
    )
    assert "protected are all ratings of every one person" in user
    assert "not protected is that a person takes part, nor" in user
    assert "is right at most 60 times in 100" in user  # Φ(1/4) = 0.599
    assert "stands under trust model" in user
    assert "about all ratings of a person" not in user


def test_what_a_person_with_twenty_ratings_pays_is_said():
    small = Gaussian(noise_multiplier=50.0, num_steps=1, user_rho=(1.0, 0.0))
    statement = priced(
        mechanism="m",
        losses=(small,),
        delta=1e-5,
        unit="rating value",
        relation=VALUE,
        released=("item factors",),
        trust_model="one",
        status="proved",
    ).statement
    # z / 20 = 2.5 for all ratings: Φ(1/5) = 0.579; Φ(1/100) = 0.504 for one
    text = " ".join(statement.split())
    assert "is right at most 51 times in 100; a coin is right 50 times" in text
    assert "of a person who has 20, such a guess is right at most 58 times in 100" in text
    assert "such a guess is right nearly always" in " ".join(
        guarantee(
            Gaussian(noise_multiplier=5.0, num_steps=100, user_rho=(1.0, 0.0))
        ).statement.split()
    )


def test_a_seed_and_a_claim_come_first():
    first = plain.sentences(guarantee(seeded=True))[0]
    assert first.startswith("nothing of this holds once the model is shown")
    claimed = sentences_of(status="claimed", claimed_by="paper 001")
    assert "paper 001 claims, and nobody proved: protected is the value" in claimed


def test_plain_words_come_before_the_numbers():
    lines = guarantee().statement.splitlines()
    assert lines[1] == "  in plain words"
    assert [line for line in lines if line.startswith("  Differential privacy: ")]
    noise = " ".join(" ".join(lines).split())
    assert "z: the noise's standard deviation σ, over Δ" in noise
    assert "ρ: 1/(2z²) of every step" in noise
    assert "q: how likely" not in noise
