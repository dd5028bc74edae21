"""Composition of any mix of losses: laws, then one and two steps integrated by hand, then
randomised response.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from accounting import composition, gaussian, mixture, pure
from accounting.loss import Approximate, Gaussian, Pure, SubsampledGaussian

DELTA = 1e-5
PRESENCE, VALUE, USER = "rating presence", "rating value", "user"

multipliers = st.floats(math.log(0.5), math.log(10)).map(math.exp)
rates = st.floats(math.log(1e-3), 0).map(lambda power: min(1.0, math.exp(power)))
steps = st.sampled_from([1, 2, 17, 100])
deltas = st.floats(-8, -2).map(lambda power: 10.0**power)
units = st.sampled_from([PRESENCE, VALUE, USER])


@st.composite
def losses_of_any_kind(draw):
    kind = draw(st.sampled_from(["gaussian", "sampled", "pure"]))
    if kind == "gaussian":
        return Gaussian(noise_multiplier=draw(multipliers) * 5, num_steps=draw(steps))
    if kind == "pure":
        return Pure(epsilon=draw(st.floats(0.01, 5)), num_rounds=draw(st.sampled_from([1, 3, 20])))
    return SubsampledGaussian(
        noise_multiplier=draw(multipliers), sampling_rate=draw(rates), num_steps=draw(steps)
    )


mixes = st.lists(losses_of_any_kind(), min_size=1, max_size=3)


def sampled(z, q, num_steps=1):
    return SubsampledGaussian(noise_multiplier=z, sampling_rate=q, num_steps=num_steps)


def pld(losses, unit=PRESENCE, **more):
    return composition.pld(losses, unit=unit, **more)


def rdp(losses, unit=PRESENCE):
    return composition.rdp(losses, unit=unit)


# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
@given(mixes, deltas, st.sampled_from([PRESENCE, USER]))
def test_pld_is_at_most_rdp(losses, delta, unit):
    assert pld(losses, unit).epsilon(delta) <= rdp(losses, unit).epsilon(delta) * (1 + 1e-3)


def test_rdp_delta_is_the_inverse_of_rdp_epsilon_where_total_variation_is_nearly_as_good():
    one = [sampled(math.e, 0.004086771438464067)]
    epsilon = rdp(one).epsilon(1e-3)
    assert 0.999e-3 < rdp(one).delta(epsilon) < 1.001e-3


@pytest.mark.seconds
@given(mixes, deltas, units, st.randoms())
def test_order_of_composition_does_not_matter(losses, delta, unit, random):
    other = random.sample(losses, len(losses))
    assert pld(other, unit).epsilon(delta) == pytest.approx(
        pld(losses, unit).epsilon(delta), rel=1e-6, abs=1e-9
    )
    if unit != VALUE:
        assert rdp(other, unit).epsilon(delta) == pytest.approx(
            rdp(losses, unit).epsilon(delta), rel=1e-9
        )


@pytest.mark.slow
@given(losses_of_any_kind(), deltas, units)
def test_chunks_cost_what_the_whole_costs(loss, delta, unit):
    if isinstance(loss, Pure):
        whole, chunks = (
            [Pure(epsilon=0.5 * rounds, num_rounds=rounds) for rounds in counts]
            for counts in ([5], [2, 3])
        )
    else:
        fields = {
            name: getattr(loss, name) for name in loss.__dataclass_fields__ if name != "num_steps"
        }
        whole, chunks = (
            [type(loss)(num_steps=count, **fields) for count in counts] for counts in ([5], [2, 3])
        )
    assert pld(whole, unit).epsilon(delta) == pld(chunks, unit).epsilon(delta)
    if unit != VALUE:
        assert rdp(whole, unit).epsilon(delta) == rdp(chunks, unit).epsilon(delta)


@pytest.mark.seconds
@given(mixes, losses_of_any_kind(), deltas, units)
def test_one_more_loss_never_costs_less(losses, more, delta, unit):
    before, after = pld(losses, unit).epsilon(delta), pld([*losses, more], unit).epsilon(delta)
    assert after >= before * (1 - 1e-3)
    if unit != VALUE:
        assert rdp([*losses, more], unit).epsilon(delta) >= rdp(losses, unit).epsilon(delta) * (
            1 - 1e-6
        )


@pytest.mark.seconds
@given(mixes, deltas, units)
def test_epsilon_and_delta_are_inverse(losses, delta, unit):
    composed = pld(losses, unit)
    epsilon = composed.epsilon(delta)
    if epsilon > 0:
        assert composed.delta(epsilon) <= delta * (1 + 1e-6)
        pure = all(isinstance(loss, Pure) for loss in losses)  # whose δ jumps to 0 at Σε
        assert pure or composed.delta(epsilon * (1 - 1e-3)) > delta * (1 - 1e-6)
    if unit != VALUE:
        assert rdp(losses, unit).delta(rdp(losses, unit).epsilon(delta)) <= delta * (1 + 1e-3)


@pytest.mark.seconds
@given(multipliers, steps, deltas, units)
def test_sampling_everybody_is_not_sampling(z, num_steps, delta, unit):
    everybody, apart = sampled(z, 1.0, num_steps), 2 if unit == VALUE else 1
    unsampled = Gaussian(noise_multiplier=z / apart, num_steps=num_steps)
    assert pld([everybody], unit).epsilon(delta) == pld([unsampled], unit).epsilon(delta)
    nearly = sampled(z, 1 - 1e-9, num_steps)
    exact = gaussian.epsilon_exact(gaussian.rho(z / apart, num_steps), delta)
    assert pld([nearly], unit).epsilon(delta) == pytest.approx(exact, rel=2e-4, abs=1e-6)


@given(st.lists(st.tuples(multipliers, steps), min_size=1, max_size=3), deltas, units)
def test_gaussians_alone_are_one_gaussian_and_never_below_the_exact_price(phases, delta, unit):
    losses = [Gaussian(noise_multiplier=z, num_steps=count) for z, count in phases]
    rho = math.fsum(gaussian.rho(z, count) for z, count in phases)
    exact = gaussian.epsilon_exact(rho, delta)
    assert exact - 1e-9 <= pld(losses, unit).epsilon(delta) <= exact * (1 + 2e-4) + 1e-9
    assert rdp(losses, unit).epsilon(delta) == pytest.approx(
        gaussian.epsilon_rdp(1 / math.sqrt(2 * rho), 1, delta), rel=1e-9
    )
    assert rdp(losses, unit).epsilon(delta) <= gaussian.epsilon_closed_form(rho, delta) * (
        1 + 1e-12
    )


def test_the_relation_is_not_doubled_where_a_sampled_loss_stands_beside_a_gaussian():
    noise = Gaussian(noise_multiplier=1.0, num_steps=1)
    little = sampled(10.0, 1e-3)
    exact = gaussian.epsilon_exact(0.5, DELTA)
    assert pld([noise, little], VALUE).epsilon(DELTA) == pytest.approx(exact, rel=1e-3)


# --------------------------------------------------------------------------------------------------


def densities(z, counts, probabilities, unit, x):
    """The world with the ratings and the world without (or with them at the other end), on a grid
    of x.
    """
    world = sum(p * stats.norm.pdf(x, k, z) for k, p in zip(counts, probabilities, strict=True))
    if unit == VALUE:
        return world, sum(
            p * stats.norm.pdf(x, -k, z) for k, p in zip(counts, probabilities, strict=True)
        )
    return world, stats.norm.pdf(x, 0, z)


def integrated_delta(z, counts, probabilities, unit, epsilon, num_steps):
    """The larger hockey-stick divergence of the two directions, by a plain sum over one or two
    dimensions.
    """
    points = 200_001 if num_steps == 1 else 1501
    x = np.linspace(-9 * z - counts[-1], counts[-1] + 9 * z, points)
    spacing = x[1] - x[0]
    one, other = densities(z, counts, probabilities, unit, x)
    if num_steps == 2:
        one, other = np.outer(one, one), np.outer(other, other)
    spacing = spacing**num_steps
    return max(
        np.maximum(a - math.exp(epsilon) * b, 0).sum() * spacing
        for a, b in ((one, other), (other, one))
    )


CASES = [(1.0, 0.01), (0.5, 0.1), (2.0, 0.5), (0.7, 0.9), (4.0, 0.2), (1.0, 0.999)]


@pytest.mark.one_case
@pytest.mark.parametrize("unit", [PRESENCE, VALUE])
@pytest.mark.parametrize(("z", "q"), CASES)
@pytest.mark.parametrize("num_steps", [1, 2])
def test_delta_of_one_and_two_steps_is_the_integral(z, q, unit, num_steps):
    composed = pld([sampled(z, q, num_steps)], unit)
    for epsilon in (0.0, 0.02, 0.3, 1.0, 2.5):
        true = integrated_delta(z, (0, 1), (1 - q, q), unit, epsilon, num_steps)
        assert true * (1 - 1e-5) - 1e-12 <= composed.delta(epsilon) <= true * (1 + 5e-3) + 1e-7


@pytest.mark.parametrize("num_steps", [1, 2])
@pytest.mark.parametrize(
    ("z", "q", "m"), [(1.0, 0.01, 20), (2.0, 0.5, 3), (0.7, 0.2, 5), (5.0, 0.9, 10)]
)
def test_delta_of_all_ratings_of_a_user_is_the_integral(z, q, m, num_steps):
    composed = pld([sampled(z, q, num_steps)], num_ratings=m)
    counts = np.arange(m + 1)
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        true = integrated_delta(
            z, counts, stats.binom.pmf(counts, m, q), PRESENCE, epsilon, num_steps
        )
        assert true * (1 - 1e-5) - 1e-12 <= composed.delta(epsilon) <= true * (1 + 5e-3) + 1e-7


def test_both_directions_count():
    one, other = densities(2.0, (0, 1), (0.5, 0.5), PRESENCE, np.linspace(-20, 20, 40_001))
    added, removed = (
        np.maximum(a - math.exp(0.05) * b, 0).sum() * 1e-3 for a, b in ((other, one), (one, other))
    )
    assert added != pytest.approx(removed, rel=1e-2)
    assert pld([sampled(2.0, 0.5)]).delta(0.05) == pytest.approx(max(added, removed), rel=1e-4)


# --------------------------------------------------------------------------------------------------


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("z", "q", "m"), [(1.0, 0.01, 20), (4.0, 0.1, 20), (0.5, 0.3, 4), (2.0, 0.9, 5), (0.05, 0.1, 2)]
)
def test_a_mixture_is_the_one_of_dp_accounting(z, q, m):
    from dp_accounting.pld import privacy_loss_distribution as plds

    counts, probabilities = mixture.binomial(m, q)
    interval = 1e-2 / min(z, 1) ** 2
    ours = mixture.distribution(z, counts, probabilities, interval)
    theirs = plds.from_mixture_gaussian_mechanism(
        z, counts, probabilities, value_discretization_interval=interval
    )
    for delta in (3e-3, 1e-5, 1e-8):
        for times in (1, 10):
            expected = theirs.self_compose(times).get_epsilon_for_delta(delta)
            assert ours.self_compose(times).get_epsilon_for_delta(delta) == pytest.approx(
                expected, rel=1e-5, abs=1e-7
            )


@given(multipliers, rates.filter(lambda q: q < 1), st.integers(1, 60))
@example(z=1.0, q=0.999999940395357, m=39)  # that none is sampled has probability 1e-282
def test_counts_cover_all_but_a_negligible_part(z, q, m):
    counts, probabilities = mixture.binomial(m, q)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert stats.binom.sf(counts[-1], m, q) <= mixture.NEGLIGIBLE
    assert list(counts) == list(range(int(counts[0]), int(counts[0]) + len(counts)))
    assert (
        stats.binom.cdf(counts[0] - 1, m, q) <= 1e-280
    )  # counted as the least that is kept, which costs more


@pytest.mark.seconds
@settings(max_examples=10)
@given(multipliers, rates, deltas)
def test_one_rating_is_a_user_with_one_rating(z, q, delta):
    losses = [sampled(z, q, 30)]
    assert pld(losses, num_ratings=1).epsilon(delta) == pld(losses).epsilon(delta)
    if q < 1:
        factor = composition._sampled_factor(losses[0], PRESENCE, 1)
        other = factor._replace(
            distribution=lambda h: mixture.distribution(z, *mixture.binomial(1, q), h)
        )
        assert composition._convolved([other]).epsilon(delta) == pytest.approx(
            pld(losses).epsilon(delta), rel=1e-5, abs=1e-6
        )


def test_a_user_whose_ratings_are_all_sampled_pays_m_squared_in_rho():
    exact = gaussian.epsilon_exact(25 * gaussian.rho(10.0, 4), DELTA)
    assert pld([sampled(10.0, 1.0, 4)], num_ratings=5).epsilon(DELTA) == pytest.approx(
        exact, rel=1e-4
    )
    assert pld([sampled(10.0, 1 - 1e-9, 4)], num_ratings=5).epsilon(DELTA) == pytest.approx(
        exact, rel=1e-3
    )


# --------------------------------------------------------------------------------------------------


def optimal_delta(epsilon_round, rounds, epsilon):
    """Kairouz, Oh & Viswanath 2015: Σ_l C(k, l) (e^{(k−l)ε₀} − e^{ε+lε₀})₊ / (1 + e^ε₀)^k."""
    terms = (
        math.comb(rounds, lies)
        * max(
            0.0,
            math.exp((rounds - lies) * epsilon_round) - math.exp(epsilon + lies * epsilon_round),
        )
        for lies in range(rounds + 1)
    )
    return math.fsum(terms) / (1 + math.exp(epsilon_round)) ** rounds


@given(st.floats(0.01, 3), st.integers(1, 30), st.floats(0, 0.999))
def test_pure_rounds_are_randomised_response_composed_optimally(epsilon_round, rounds, part):
    total = epsilon_round * rounds
    composed = pld([Pure(epsilon=total, num_rounds=rounds)], USER)
    expected = optimal_delta(total / rounds, rounds, part * total)
    assert composed.delta(part * total) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert composed.delta(part * total) >= expected * (1 - 1e-12)


@pytest.mark.seconds
@given(st.floats(0.01, 3), st.integers(1, 30), deltas)
def test_pure_rounds_never_cost_more_than_they_say(epsilon_round, rounds, delta):
    loss = Pure(epsilon=epsilon_round * rounds, num_rounds=rounds)
    assert pld([loss], USER).epsilon(delta) <= loss.epsilon
    assert rdp([loss], USER).epsilon(delta) <= loss.epsilon * (1 + 1e-12)
    assert pld([loss], USER).delta(loss.epsilon) == 0


def test_unequal_pure_rounds_by_enumeration():
    sizes = (0.3, 0.7, 1.1)
    losses = [Pure(epsilon=size) for size in sizes]
    for epsilon in (0.0, 0.4, 1.0, 1.9):
        expected = 0.0
        for lies in np.ndindex(2, 2, 2):
            ratio = math.fsum(-size if lie else size for size, lie in zip(sizes, lies, strict=True))
            likely = math.prod(
                1 / (1 + math.exp(size if lie else -size))
                for size, lie in zip(sizes, lies, strict=True)
            )
            expected += likely * max(0.0, -math.expm1(epsilon - ratio))
        assert (
            expected * (1 - 1e-12)
            <= pld(losses, USER).delta(epsilon)
            <= expected * (1 + 2e-3) + 1e-9
        )


@given(st.floats(-6, 1.5).map(lambda power: 10.0**power), st.floats(1.001, 500))
def test_renyi_divergence_of_randomised_response(epsilon, order):
    import mpmath

    with mpmath.workdps(50):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        p = 1 / (1 + mpmath.exp(-e))
        true = mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
    assert pure.divergence(epsilon, order) == pytest.approx(float(true), rel=1e-9)


# --------------------------------------------------------------------------------------------------


def test_free_losses_are_free_and_infinite_ones_are_not():
    for make in (composition.pld, composition.rdp):
        for losses in (
            [],
            [Pure(epsilon=0.0)],
            [Gaussian(noise_multiplier=1.0, num_steps=0)],
            [sampled(1.0, 0.1, 0)],
        ):
            composed = make(losses, unit=PRESENCE)
            assert (composed.epsilon(DELTA), composed.delta(0.0)) == (0, 0)
        composed = make(
            [Pure(epsilon=math.inf), Gaussian(noise_multiplier=1.0, num_steps=1)], unit=PRESENCE
        )
        assert (composed.epsilon(DELTA), composed.delta(3.0)) == (math.inf, 1)


def test_a_loss_too_small_for_floats_is_never_priced_at_nothing():
    loss = sampled(1.0, 1e-9, 1_000_000)
    assert rdp([loss]).epsilon(1e-12) > 0
    assert rdp([loss]).delta(0.0) > 0
    assert pld([sampled(1.0, 1e-3)]).delta(50.0) > 0


def test_rounding_of_fourier_transforms_is_paid_for():
    composed = pld([sampled(1.0, 0.01, 10_000)])
    assert composed.epsilon(1e-13) == math.inf
    assert composed.delta(300.0) >= 9e-12
    assert rdp([sampled(1.0, 0.01, 10_000)]).epsilon(1e-13) < math.inf


def test_extreme_noise_does_not_overflow():
    for losses in (
        [sampled(0.02, 0.01, 3)],
        [sampled(1000.0, 0.5, 3)],
        [Gaussian(noise_multiplier=0.02, num_steps=2)],
    ):
        price = pld(losses).epsilon(DELTA)
        rho = gaussian.rho(losses[0].noise_multiplier, losses[0].num_steps)
        assert 0 <= price <= gaussian.epsilon_exact(rho, DELTA) * (1 + 1e-3)
        assert price > 0 or losses[0].noise_multiplier == 1000


def test_refusals_say_what_is_not_supported():
    step = sampled(1.0, 0.1)
    with pytest.raises(
        ValueError, match="does not price a changed value under Poisson sampling; pld does"
    ):
        rdp([step], VALUE)
    rdp([sampled(1.0, 1.0)], VALUE)  # not sampled
    for make in (composition.pld, composition.rdp):
        with pytest.raises(ValueError, match="Approximate"):
            make([Approximate(epsilon=1.0, delta=1e-6)], unit=PRESENCE)
        composed = make([step], unit=PRESENCE)
        for bad in (0.0, 1.0, -1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="delta must be"):
                composed.epsilon(bad)
        for bad in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="epsilon must be"):
                composed.delta(bad)
    for unit in (VALUE, USER):
        with pytest.raises(ValueError, match="several ratings"):
            pld([step], unit, num_ratings=2)
    with pytest.raises(ValueError, match="at least 1"):
        pld([step], num_ratings=0)
