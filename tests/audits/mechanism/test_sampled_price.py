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
from dpmf_jax.mechanisms import grid
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
    """(σ of the sampler, B_t, q) as the parts of the mechanism hold them; σ and B in units."""
    (law,), (params,) = mechanism.noise.sample.args, mechanism.query.args
    return float(law.scale), np.asarray(params.grid.bounds, np.float64), float(params.rate)


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
    scale, bounds, rate = numbers(mechanism)
    assert (bounds == bounds[0]).all()
    made = mechanism.guarantee(40)
    assert made.status == "proved"
    assert made.unit == unit
    assert made.sensitivity == bounds[0] * (2 if unit == "rating value" else 1)
    expected = priced_by_dp_accounting([(scale / bounds[0], rate, 40)], made.delta, unit)
    assert made.epsilon == pytest.approx(expected, rel=5e-4, abs=1e-4)


def test_steps_of_different_noise_are_priced_each():
    mechanism = langevin.dp(config(decay=4.0, num_steps=6))
    scale, bounds, rate = numbers(mechanism)
    assert bounds[0] == 4094
    assert (np.diff(bounds) < 0).all()
    made = mechanism.guarantee(6)
    expected = priced_by_dp_accounting(
        [(scale / b, rate, 1) for b in bounds], made.delta, made.unit
    )
    assert made.epsilon == pytest.approx(expected, rel=5e-4, abs=1e-4)
    assert sum(part.num_steps for part in made.losses) == 6
    first, last = (
        composition.pld(
            [SubsampledGaussian(noise_multiplier=scale / b, sampling_rate=rate, num_steps=6)],
            unit=made.unit,
        )
        for b in (bounds[0], bounds[-1])
    )
    assert last.epsilon(made.delta) * 1.05 < made.epsilon < first.epsilon(made.delta) / 1.05


@pytest.mark.seconds
def test_many_different_steps_are_grouped_at_no_lower_price():
    mechanism = langevin.dp(config(decay=4.0, num_steps=100))
    scale, bounds, rate = numbers(mechanism)
    losses = mechanism.guarantee(100).losses
    assert len(losses) <= 32
    priced = np.sort(np.concatenate([[part.noise_multiplier] * part.num_steps for part in losses]))
    true = np.sort(scale / bounds)
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
    scale, bounds, _ = numbers(mechanism)
    last = scale / bounds[-1]
    assert (
        sum(
            part.num_steps
            for part in more
            if part.noise_multiplier == pytest.approx(last, rel=1e-12)
        )
        >= 10
    )


def powers(low, high):
    return st.floats(low, high).map(lambda power: 10.0**power)


rates = powers(-6, 0).map(lambda rate: min(1.0, rate))


@given(powers(-6, 3), powers(-6, 6), rates)
def test_rounding_only_lowers_the_price_of_dpsgd(z, clip_norm, rate):
    for make in (langevin.dpsgd, sketch_dpsgd.mechanism):
        mechanism = make(config(noise_multiplier=z, clip_norm=clip_norm, sampling_rate=rate))
        scale, bounds, chance = numbers(mechanism)
        assert z * (1 - 1e-12) <= scale / bounds[0] <= z * (1 + 1e-6)
        assert 64 <= bounds[0] <= 4094
        (params,) = mechanism.query.args
        assert float(params.grid.unit) == pytest.approx(clip_norm / bounds[0], rel=1e-6)
        assert rate * (1 - 1e-6) <= chance <= rate
        (phase,) = sampled.phases(params, 3)
        assert phase.noise_multiplier == pytest.approx(scale / bounds[0], rel=1e-12)
        assert (phase.sampling_rate, phase.num_steps) == (chance, 3)
        assert phase.distance == grid.STEP_DISTANCE


@given(powers(-3, 2.5), powers(-6, 6), rates, powers(-4, 0), st.sampled_from([0.0, 0.5, 9.0]))
def test_langevin_noise_is_that_of_its_temperature_and_its_price_that_of_the_noise(
    multiplier, clip, rate, eta, decay
):
    steps, temperature = 7, eta * (multiplier * clip / rate) ** 2 / 2
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
    scale, bounds, chance = numbers(mechanism)
    assert chance <= rate
    (params,) = mechanism.query.args
    one = jnp.uint32(1)  # unit of the response
    for t in range(steps):
        size = eta / (1 + decay * t / steps)
        moved = float(sampled.descend(params, jnp.int32(t), jnp.float32(0), one)) * scale
        assert moved == pytest.approx(math.sqrt(2 * size * temperature), rel=1e-5)
        # whole units below C·w_t: never a smaller z than that of the temperature
        z = rate * math.sqrt(2 * temperature / size) / clip
        assert z * (1 - 1e-5) <= scale / bounds[t] <= z * (1 + 1 / bounds[t] + 1e-5)
    priced = sorted(
        part.noise_multiplier
        for part in sampled.phases(params, steps)
        for _ in range(part.num_steps)
    )
    np.testing.assert_allclose(priced, np.sort(scale / bounds), rtol=1e-12)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["sketch", "langevin"])
def test_neither_layout_nor_capacity_changes_sum_or_price(name, key):
    """In whole numbers, to the bit: who is in a sample follows from user, item and key."""
    whole = SOUND[name](config(sampling_rate=0.6))
    sums = []
    for kind in ("split", "dense"):
        data = layout.make(RATINGS, kind=kind, num_devices=1)
        state = protocol.begin(whole, key, data)
        sums.append(query(whole, state, data, whole.coins(key)))
    jax.tree.map(np.testing.assert_array_equal, *sums)
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
    jax.tree.map(np.testing.assert_array_equal, *found)
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
        "noise and sums are whole numbers",
        "of δ for drawing it from tables of whole numbers",
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
@given(st.sampled_from(["noise_scale", "bounds", "rate"]), st.floats(1.2, 2.0))
def test_a_price_follows_what_is_read(name, factor):
    mechanism = langevin.dpsgd(config(num_steps=5))
    params = mechanism.query.args[0]
    (before,) = sampled.phases(params, 5)
    if name == "bounds":
        made = params.grid._replace(bounds=params.grid.bounds * jnp.float32(factor))
        changed = dataclasses.replace(params, grid=made)
    else:
        more = {name: getattr(params, name) * jnp.float32(factor)}
        changed = dataclasses.replace(params, **more)
    (after,) = sampled.phases(changed, 5)
    ratio = after.noise_multiplier / before.noise_multiplier
    expected = {"noise_scale": factor, "bounds": 1 / factor, "rate": 1.0}[name]
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


def test_noise_that_no_grid_holds_is_refused():
    for make in (langevin.dpsgd, sketch_dpsgd.mechanism):
        with pytest.raises(PrivacyError, match="too large"):
            make(config(noise_multiplier=1e30))
        with pytest.raises(ValueError, match="scale must be"):
            make(config(noise_multiplier=1e-30))
    with pytest.raises(PrivacyError, match="too large"):
        langevin.dp(config(temperature=1e30))
    for temperature in (1e80, 1e-80):
        with pytest.raises(ValueError, match="normal float32"):
            langevin.mechanism(config(temperature=temperature))
    with pytest.raises(PrivacyError, match=r"falls to 0.000244 of its largest"):
        langevin.dp(config(learning_rate=lambda t: np.where(t < 39, 1.0, 2.0**-12), num_steps=40))


def test_a_schedule_is_followed_and_priced():
    steps = config(learning_rate=lambda t: 0.01 * (1 + t % 2), num_steps=4)
    assert steps.learning_rates.tolist() == pytest.approx([0.01, 0.02, 0.01, 0.02])
    losses = langevin.dp(steps).guarantee(4).losses
    assert [part.num_steps for part in losses] == [2, 2]
    assert losses[0].noise_multiplier / losses[1].noise_multiplier == pytest.approx(
        math.sqrt(2), rel=1e-3
    )
