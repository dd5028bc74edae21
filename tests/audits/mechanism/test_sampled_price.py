"""What sampled mechanisms cost: the price is that of the numbers which noise and sampler read, on
the safe side.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import composition
from accounting.loss import SubsampledGaussian
from dpmf_jax import layout, protocol
from dpmf_jax.data import synthetic
from dpmf_jax.errors import PrivacyError
from dpmf_jax.layout import poisson
from dpmf_jax.mechanisms.sampled import langevin, sampled
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd

RATINGS = synthetic.generate(num_users=12, num_items=9, num_ratings=50, seed=5)
SOUND = {"sketch": sketch_dpsgd.mechanism, "langevin": langevin.dp, "dpsgd": langevin.dpsgd}
UNITS = ("rating presence", "rating value")


@jax.jit
def query(mechanism, state, data, coins):
    return mechanism.query(state, data, coins)[0]


def config(**settings):
    usual = {
        "rating_range": (1.0, 5.0),
        "num_steps": 40,
        "sampling_rate": 0.2,
        "noise_multiplier": 1.5,
        "rank": 3,
    }
    return sampled.Config(
        **usual | {"learning_rate": 0.01, "clip_norm": 0.7, "temperature": 2.0} | settings
    )


def numbers(mechanism):
    """(σ of the sampler, C, q, w_t) as the parts of the mechanism hold them."""
    (scale,), (params,) = mechanism.noise.sample.args, mechanism.query.args
    return (
        float(scale),
        float(params.clip_norm),
        float(params.rate),
        np.asarray(params.weights, np.float64),
    )


def priced_by_dp_accounting(losses, delta, unit):
    import dp_accounting

    relation = dp_accounting.NeighboringRelation
    accountant = dp_accounting.pld.PLDAccountant(
        relation.REPLACE_ONE if unit == "rating value" else relation.ADD_OR_REMOVE_ONE, 1e-4
    )
    for z, q, count in losses:
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", list(SOUND))
def test_a_price_is_that_of_dp_accounting_on_the_numbers_of_noise_and_sampler(name, unit):
    mechanism = SOUND[name](config(unit=unit))
    scale, clip_norm, rate, weights = numbers(mechanism)
    assert (weights == 1).all()
    made = mechanism.guarantee(40)
    assert made.status == "proved for real-number noise"
    assert made.unit == unit
    assert made.sensitivity == clip_norm * (2 if unit == "rating value" else 1)
    expected = priced_by_dp_accounting([(scale / clip_norm, rate, 40)], made.delta, unit)
    assert made.epsilon == pytest.approx(expected, rel=5e-4, abs=1e-4)


def test_steps_of_different_noise_are_priced_each():
    mechanism = langevin.dp(config(decay=4.0, num_steps=6))
    scale, clip_norm, rate, weights = numbers(mechanism)
    assert weights[0] == 1
    assert (np.diff(weights) < 0).all()
    made = mechanism.guarantee(6)
    expected = priced_by_dp_accounting(
        [(scale / clip_norm / w, rate, 1) for w in weights], made.delta, made.unit
    )
    assert made.epsilon == pytest.approx(expected, rel=5e-4, abs=1e-4)
    assert sum(part.num_steps for part in made.losses) == 6
    first, last = (
        composition.pld(
            [
                SubsampledGaussian(
                    noise_multiplier=scale / clip_norm / w, sampling_rate=rate, num_steps=6
                )
            ],
            unit=made.unit,
        )
        for w in (weights[0], weights[-1])
    )
    assert last.epsilon(made.delta) * 1.05 < made.epsilon < first.epsilon(made.delta) / 1.05


@pytest.mark.seconds
def test_many_different_steps_are_grouped_at_no_lower_price():
    mechanism = langevin.dp(config(decay=4.0, num_steps=100))
    scale, clip_norm, rate, weights = numbers(mechanism)
    losses = mechanism.guarantee(100).losses
    assert len(losses) <= 32
    priced = np.sort(np.concatenate([[part.noise_multiplier] * part.num_steps for part in losses]))
    true = np.sort(scale / clip_norm / weights)
    assert (priced <= true * (1 + 1e-12)).all()
    assert (priced >= true * 0.96).all()
    assert {part.sampling_rate for part in losses} == {rate}


@pytest.mark.one_case
@pytest.mark.parametrize("name", list(SOUND))
def test_a_price_grows_with_steps_and_steps_beyond_the_last_cost_what_they_are(name):
    mechanism = SOUND[name](config(num_steps=10, decay=2.0))
    prices = [mechanism.guarantee(steps).epsilon for steps in (1, 5, 10, 20)]
    assert (np.diff(prices) > 0).all()
    more = mechanism.guarantee(20).losses
    scale, clip_norm, _, weights = numbers(mechanism)
    last = scale / clip_norm / weights[-1]
    assert (
        sum(
            part.num_steps
            for part in more
            if part.noise_multiplier == pytest.approx(last, rel=1e-12)
        )
        >= 10
    )


wide = st.floats(-6, 6).map(lambda power: 10.0**power)
rates = st.floats(-6, 0).map(lambda power: min(1.0, 10.0**power))


@given(wide, wide, rates)
def test_rounding_to_float32_only_lowers_the_price_of_dpsgd(z, clip_norm, rate):
    for make in (langevin.dpsgd, sketch_dpsgd.mechanism):
        mechanism = make(config(noise_multiplier=z, clip_norm=clip_norm, sampling_rate=rate))
        scale, bound, chance, _ = numbers(mechanism)
        assert z * (1 - 1e-12) <= scale / bound <= z * (1 + 1e-6)
        assert bound >= clip_norm
        assert rate * (1 - 1e-6) <= chance <= rate
        (phase,) = sampled.phases(mechanism.query.args[0], 3)
        assert phase == SubsampledGaussian(
            noise_multiplier=scale / bound, sampling_rate=chance, num_steps=3
        )


@given(wide, wide, rates, st.floats(-4, 0), st.sampled_from([0.0, 0.5, 9.0]))
def test_langevin_noise_is_that_of_its_temperature_and_its_price_that_of_the_noise(
    temperature, clip, rate, eta, decay
):
    eta, steps = 10.0**eta, 7
    made = config(
        temperature=temperature,
        clip_norm=clip,
        sampling_rate=rate,
        learning_rate=eta,
        decay=decay,
        num_steps=steps,
        regularization=0.0,
    )
    mechanism = langevin.dp(made)
    scale, bound, chance, weights = numbers(mechanism)
    assert bound >= clip
    assert chance <= rate
    (params,) = mechanism.query.args
    for t in range(steps):
        size = eta / (1 + decay * t / steps)
        moved = float(sampled.descend(params, jnp.int32(t), jnp.float32(0), jnp.float32(1))) * scale
        assert moved == pytest.approx(math.sqrt(2 * size * temperature), rel=1e-5)
        assert scale / bound / weights[t] == pytest.approx(
            rate * math.sqrt(2 * temperature / size) / clip, rel=1e-5
        )
    priced = sorted(
        part.noise_multiplier
        for part in sampled.phases(params, steps)
        for _ in range(part.num_steps)
    )
    np.testing.assert_allclose(priced, np.sort(scale / bound / weights), rtol=1e-12)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["sketch", "langevin"])
def test_neither_layout_nor_capacity_changes_sum_or_price(name, key):
    """All of the ratings, so that the sample is the same in both layouts; and a part of them with
    more memory.
    """
    whole = SOUND[name](config(sampling_rate=1.0))
    sums = []
    for kind in ("split", "dense"):
        data = layout.make(RATINGS, kind=kind, num_devices=1)
        state = protocol.begin(whole, key, data)
        sums.append(query(whole, state, data, whole.coins(key)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *sums)
    part = SOUND[name](config(sampling_rate=0.2))
    larger = dataclasses.replace(part.query.args[0], highest_rate=0.9)
    smaller, roomy = (
        poisson.capacity_for(108, rate) for rate in (part.query.args[0].highest_rate, 0.9)
    )
    assert smaller < roomy
    again = part._replace(
        query=jax.tree_util.Partial(part.query.func, larger),
        guarantee=jax.tree_util.Partial(part.guarantee.func, larger),
    )
    assert again.guarantee(9) == part.guarantee(9)
    found = [query(m, state, data, m.coins(key)) for m in (part, again)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *found)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(found[0]))


@given(rates)
def test_the_memory_is_made_for_the_rate_or_a_little_more(rate):
    highest = sampled.dpsgd_params(config(sampling_rate=rate)).highest_rate
    assert rate <= highest <= min(1.0, rate * 1.19)


@pytest.mark.parametrize("name", list(SOUND))
def test_the_statement_names_what_is_assumed(name):
    text = " ".join(str(SOUND[name](config()).guarantee(40)).split())
    for words in (
        "at most 1e-15 a step",
        "the sample stays secret",
        "2^23 values",
        "PRIVACY STATEMENT",
    ):
        assert words in text
    assert ("hashes" in text) == (name == "sketch")


def test_published_langevin_has_no_guarantee():
    made = langevin.mechanism(config()).guarantee(40)
    assert made.status == "none"
    assert made.epsilon == math.inf
    assert "NO PRIVACY GUARANTEE" in made.statement


@settings(max_examples=10)
@given(st.sampled_from(["noise_scale", "clip_norm", "rate"]), st.floats(1.2, 2.0))
def test_a_price_follows_what_is_read(name, factor):
    mechanism = langevin.dpsgd(config(num_steps=5))
    params = mechanism.query.args[0]
    (before,) = sampled.phases(params, 5)
    (after,) = sampled.phases(
        dataclasses.replace(params, **{name: getattr(params, name) * jnp.float32(factor)}), 5
    )
    ratio = after.noise_multiplier / before.noise_multiplier
    expected = {"noise_scale": factor, "clip_norm": 1 / factor, "rate": 1.0}[name]
    assert ratio == pytest.approx(expected, rel=1e-6)
    assert after.sampling_rate / before.sampling_rate == pytest.approx(
        factor if name == "rate" else 1.0, rel=1e-6
    )


@pytest.mark.parametrize("make", [langevin.dpsgd, sketch_dpsgd.mechanism])
def test_without_a_noise_multiplier_nothing_is_made(make):
    with pytest.raises(PrivacyError, match="no noise multiplier"):
        make(config(noise_multiplier=None))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate must be"),
        ({"sampling_rate": 1.01}, "sampling_rate must be"),
        ({"num_steps": 0}, "num_steps must be"),
        ({"depth": 0}, "depth must be"),
        ({"clip_norm": math.inf}, "clip_norm must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
        ({"learning_rate": 1e-60}, "learning_rate must be"),
        ({"learning_rate": lambda steps: 1.0 - steps}, "learning_rate must be"),
        ({"learning_rate": lambda steps: 1.0, "decay": 1.0}, "decay must be 0"),
        ({"decay": -1.0}, "decay must be"),
        ({"regularization": -1.0}, "regularization must be"),
        ({"center": math.nan}, "center must be"),
        ({"delta": 0.0}, "delta must"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        config(**wrong)


def test_a_user_is_no_record_here():
    with pytest.raises((ValueError, TypeError), match="unit"):
        config(unit="user")


def test_a_scale_that_float32_does_not_hold_is_refused():
    with pytest.raises(ValueError, match="normal float32"):
        langevin.dpsgd(config(noise_multiplier=1e30, clip_norm=1e30))
    with pytest.raises(ValueError, match="normal float32"):
        langevin.dpsgd(config(noise_multiplier=1e-30, clip_norm=1e-30))


def test_a_schedule_is_followed_and_priced():
    steps = config(learning_rate=lambda t: 0.01 * (1 + t % 2), num_steps=4)
    assert steps.learning_rates.tolist() == pytest.approx([0.01, 0.02, 0.01, 0.02])
    losses = langevin.dp(steps).guarantee(4).losses
    assert [part.num_steps for part in losses] == [2, 2]
    assert losses[0].noise_multiplier / losses[1].noise_multiplier == pytest.approx(
        math.sqrt(2), rel=1e-6
    )
