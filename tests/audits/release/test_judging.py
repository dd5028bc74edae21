"""Verdicts of guesses: what refutes a claim, what would, and at which level."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from accounting import gaussian as price
from accounting import guarantee as guarantees
from accounting.loss import Approximate, Pure
from audits.finding import ALPHA
from audits.release import guesses, judging, trade_off
from audits.release.guesses import Guesses, Tried
from audits.release.judging import Claim
from tests.cases.membership import STEPS, sound


def test_the_power_that_is_stated_is_that_of_simulated_guesses():
    random, num, claimed, alpha = np.random.default_rng(4), 400, 1.0, ALPHA
    seen = judging.epsilon_seen(num, num, Claim(claimed, 0.0), alpha)
    right = random.random((2000, num)) < 1 / (1 + math.exp(-seen))
    found = np.mean(
        [guesses.p_value(Guesses(num, num, int(v)), claimed, 0.0) <= alpha for v in right.sum(1)]
    )
    assert found == pytest.approx(0.95, abs=0.02)
    assert judging.epsilon_seen(20, 20, Claim(5.0, 0.0), alpha) == math.inf
    least = judging.least_right(num, num, Claim(claimed, 0.0), alpha)
    assert guesses.p_value(Guesses(num, num, least), claimed, 0.0) <= alpha
    assert guesses.p_value(Guesses(num, num, least - 1), claimed, 0.0) > alpha


def test_a_curve_refutes_what_one_point_of_it_leaves_open():
    """300 guesses, all right, of 1,000 canaries behind the noise of ε = 4."""
    mu = math.sqrt(2 * price.solve_rho(4.0, 1e-5))
    point = Claim(price.epsilon_exact(mu * mu / 2, 1e-9), 1e-9)
    claim = point._replace(curve=trade_off.of_gaussian(mu), gaussian=True)
    random, made = np.random.default_rng(0), Guesses(1000, 300, 300)
    assert judging.p_value(made, point) > ALPHA > judging.p_value(made, claim)
    assert judging.p_value(made, claim) == trade_off.p_value(made, claim.curve)
    assert judging.epsilon_bound(made, claim, 0.05) > judging.epsilon_bound(made, point, 0.05)
    assert judging.least_right(1000, 300, claim, ALPHA) < 300
    inside = random.random(1000) < 0.5
    own = guesses.guess(mu * inside + random.normal(size=1000), inside, (0.1, 0.1))
    assert judging.p_value(own, claim) > 0.05
    assert judging.epsilon_bound(own, claim, 0.05) < claim.epsilon


@pytest.mark.parametrize(("num", "mu"), [(400, 0.5), (2000, 1.0)])
def test_the_share_that_is_guessed_refutes_as_early_as_any(num, mu):
    """Against three times the claimed distance; other shares are no better."""
    claim = Claim(
        price.epsilon_exact(mu * mu / 2, 1e-9), 1e-9, trade_off.of_gaussian(mu), gaussian=True
    )
    random, runs, loud = np.random.default_rng(0), 40, 3 * mu
    inside = random.random((runs, num)) < 0.5
    scores = loud * inside + random.normal(size=(runs, num))

    def refuted(share):
        pairs = zip(scores, inside, strict=True)
        made = [guesses.guess(one, coins, (share, share)) for one, coins in pairs]
        return sum(not trade_off.possible(one, claim.curve, ALPHA) for one in made)

    counts = {share: refuted(share) for share in guesses.SHARES if share}
    assert counts[judging.best_share(num, claim, ALPHA)] >= max(counts.values()) - runs / 8
    assert judging.best_share(num, Claim(1.0, 0.0), ALPHA) == 0.5


def judged(made, epsilon, **more):
    settings = {"details": {}, "replay": {"key": [0, 1]}} | more
    tests = {"attack": Tried(made, made)}
    return judging.judge("one", "a claim", tests, Claim(epsilon, 0.0), **settings)


def test_verdicts():
    assert judged(Guesses(400, 400, 390), 1.0).verdict == "violated"
    sound = judged(Guesses(400, 400, 250), 1.0)
    assert sound.verdict == "consistent"
    assert "0.95" in sound.details["power"]
    assert judged(Guesses(400, 400, 250), 1.0, weak="a weak control").verdict == "inconclusive"
    assert judged(Guesses(400, 400, 390), 1.0, weak="a weak control").verdict == "violated"
    few = judged(Guesses(10, 10, 10), 5.0)
    assert few.verdict == "inconclusive"
    assert few.details["power"].startswith("none")
    assert judged(Guesses(400, 400, 390), 1.0).details["replay"] == {"key": [0, 1]}


def test_alpha_is_shared_among_attacks():
    """9 of 9 refutes a fair coin at 0.002, as one attack of one at that level and not as one of
    many.
    """

    def of(**tests):
        pairs = {name: Tried(made, made) for name, made in tests.items()}
        return judging.judge("one", "a claim", pairs, Claim(0.0, 0.0), details={}, replay={})

    lucky, other = Guesses(13, 13, 13), Guesses(13, 13, 6)
    alone, both = of(a=lucky), of(a=lucky, b=other)
    assert guesses.p_value(lucky, 0.0, 0.0) == pytest.approx(2.0**-13)
    assert alone.measured > both.measured
    fourteen = Guesses(14, 14, 14)  # 6.1e-5 lies between α/2 and α
    assert of(a=fourteen).verdict == "violated"
    assert of(a=fourteen, b=other).verdict != "violated"


def test_the_claim_is_judged_where_its_delta_blunts_nothing():
    made = sound().guarantee(STEPS)
    epsilon, delta, curve, is_gaussian = judging.claim_at(made, 1000)
    assert 2 * 1000 * delta <= ALPHA / 20 * (1 + 1e-9)
    assert epsilon == pytest.approx(price.epsilon_exact(made.rho, delta))
    assert delta == judging.claim_at(made, 10).delta
    assert is_gaussian
    assert curve == trade_off.of_losses(made.losses, made.delta, unit=made.unit)
    settings = {
        "mechanism": "x",
        "unit": "user",
        "relation": "r",
        "released": ("v",),
        "trust_model": "t",
        "status": "proved",
    }
    pure = guarantees.priced(losses=(Pure(epsilon=1.0),), delta=0.0, **settings)
    assert judging.claim_at(pure, 1000) == Claim(1.0, 0.0)
    only = guarantees.priced(losses=(Approximate(epsilon=1.0, delta=1e-5),), delta=1e-5, **settings)
    assert judging.claim_at(only, 1000) == Claim(1.0, 1e-5)


@pytest.mark.parametrize(("epsilon", "canaries"), [(1.0, 1), (1.0, 5), (3.0, 12)])
def test_runs_of_randomised_response_are_bounded_by_their_own_law(epsilon, canaries):
    """Pure ε lets each guess be right with e^ε/(e^ε + 1), independently: nothing is lost."""
    tails = judging.tails_of_runs(7, canaries, canaries, Claim(epsilon, 0.0))
    rate = 1 / (1 + math.exp(-epsilon))
    exact = binom.sf(np.arange(7 * canaries + 1) - 1, 7 * canaries, rate)
    np.testing.assert_allclose(tails, exact, rtol=1e-9)


def test_a_canary_a_run_behind_normal_noise_is_bounded_by_its_own_law():
    mu = 1.5
    claim = Claim(8.0, 1e-9, trade_off.of_gaussian(mu), gaussian=True)
    tails = judging.tails_of_runs(20, 1, 1, claim)
    exact = binom.sf(np.arange(21) - 1, 20, norm.cdf(mu / 2))
    assert np.all(tails >= exact * (1 - 1e-9))
    np.testing.assert_allclose(tails, exact, rtol=0.05)


def test_the_surest_guesses_of_each_run_are_bounded_too():
    """Behind normal noise of each canary's own they are right as often as scores say, no more."""
    mu, runs, canaries, made = 1.5, 8, 40, 16
    claim = Claim(8.0, 1e-9, trade_off.of_gaussian(mu), gaussian=True)
    tails = judging.tails_of_runs(runs, canaries, made, claim)
    assert len(tails) == runs * made + 1
    random = np.random.default_rng(0)
    right = []
    for _ in range(1000):
        inside = random.random((runs, canaries)) < 0.5
        scores = mu * inside + random.normal(size=inside.shape)
        found = guesses.guess_surest_of_runs(scores, inside, made / 2 / canaries)
        assert found[:3] == (runs, canaries, made)
        right.append(found.right)
    assert np.mean(tails[right] <= 0.05) <= 0.05
    assert judging.best_share(canaries, claim, ALPHA, runs=runs) > 0


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_canaries_that_are_told_all_together_are_not_called_told_too_often(share):
    """With that probability a run tells all of its canaries, and else none: (0, share)."""
    runs, canaries = 16, 8
    claim = Claim(0.0, share, trade_off.lines([(0.0, share)]))
    tails = judging.tails_of_runs(runs, canaries, canaries, claim)
    random = np.random.default_rng(0)
    told = random.random((4000, runs)) < share
    right = np.where(told, canaries, random.binomial(canaries, 0.5, told.shape)).sum(1)
    for level in (0.2, 0.05, 0.01):
        assert np.mean(tails[right] <= level) <= level + 3 * math.sqrt(level / 4000)


def test_runs_refute_what_their_canaries_together_leave_open():
    """Noise of ε = 8: one run in 10^5 may tell all of its canaries, and many runs may not."""
    mu = math.sqrt(2 * price.solve_rho(8.0, 1e-5))
    claim = Claim(
        price.epsilon_exact(mu * mu / 2, 1e-9), 1e-9, trade_off.of_gaussian(mu), gaussian=True
    )
    assert judging.p_value(Guesses(192, 192, 192), claim) > ALPHA / 12
    by_run = guesses.ByRun(32, 6, 6, 192)
    assert judging.tails_of_runs(32, 6, 6, claim)[-1] < 1e-8
    weak = Tried(Guesses(192, 192, 96), Guesses(192, 192, 96), by_run)
    finding = judging.judge("n", "w", {"attack": weak}, claim, details={}, replay={})
    assert finding.verdict == "violated"
    assert min(finding.details["p_values"], key=finding.details["p_values"].get).endswith("by run")
    honest = np.random.default_rng(0)
    inside = honest.random((32, 6)) < 0.5
    own = guesses.guess_by_run(mu * inside + honest.normal(size=(32, 6)), inside, mu / 2)
    assert own.right == pytest.approx(192 * norm.cdf(mu / 2), abs=20)
    still = judging.judge("n", "w", {"a": weak._replace(by_run=own)}, claim, details={}, replay={})
    assert still.verdict == "consistent"
    assert math.isfinite(float(still.details["power"].split("ε = ")[1].split()[0]))
