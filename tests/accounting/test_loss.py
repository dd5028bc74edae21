"""What a release spends, as data: guards, decimal sums, merging, JSON."""

import itertools
import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import loss
from accounting.loss import Approximate, BestOf, Gaussian, Loss, Pure, SubsampledGaussian

counts = st.integers(1, 10_000)
gaussians = st.builds(
    Gaussian,
    noise_multiplier=st.sampled_from([0.5, 1.0, 20.0]),
    num_steps=counts,
    user_rho=st.sampled_from([None, (1.0, 0.0), (0.5, 0.5)]),
)
sampled = st.builds(
    SubsampledGaussian,
    noise_multiplier=st.sampled_from([0.5, 1.0]),
    sampling_rate=st.sampled_from([0.01, 1.0]),
    num_steps=counts,
)
pures = st.builds(
    Pure, epsilon=st.sampled_from([0.0, 0.1, 0.3, 2.0, math.inf]), num_rounds=st.integers(1, 7)
)
approximates = st.builds(
    Approximate,
    epsilon=st.sampled_from([0.0, 0.4]),
    delta=st.sampled_from([1e-6, 1e-9]),
    num_steps=st.integers(1, 99),
)
choices = st.builds(
    BestOf,
    run=st.lists(
        st.builds(
            Gaussian, noise_multiplier=st.sampled_from([1.0, 3.0]), num_steps=st.integers(1, 9)
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    stop=st.sampled_from([0.1, 1.0]),
    shape=st.sampled_from([0.0, 1.0]),
)
losses = st.lists(st.one_of(gaussians, sampled, pures, approximates, choices), max_size=6)


@given(losses)
def test_json_round_trip(some):
    again = [
        loss.from_dict(json.loads(json.dumps(loss.to_dict(one), allow_nan=False))) for one in some
    ]
    assert again == some


@given(losses)
def test_merging_keeps_the_steps_and_what_is_spent_whatever_the_order(some):
    whole = loss.merged(some)
    assert loss.num_steps(whole) == loss.num_steps(some)
    assert set(whole) == set(loss.merged(some[::-1]))
    assert loss.merged(whole) == whole
    assert loss.total(_pure(whole)) == loss.total(_pure(some))


def _pure(some):
    return [one.epsilon for one in some if isinstance(one, Pure)]


def test_a_run_cut_into_chunks_spends_what_the_whole_does():
    for whole, parts in (
        (Gaussian(noise_multiplier=2.0, num_steps=5), [{"num_steps": 2}, {"num_steps": 3}]),
        (
            SubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.1, num_steps=5),
            [{"num_steps": 1}] * 5,
        ),
        (Approximate(epsilon=0.1, delta=1e-6, num_steps=3), [{"num_steps": 1}, {"num_steps": 2}]),
    ):
        cut = [type(whole)(**{**vars(whole), **part}) for part in parts]
        assert loss.merged(cut) == (whole,)
    thirds = [Pure(epsilon=0.1), Pure(epsilon=0.2, num_rounds=2)]
    assert loss.merged(thirds) == (Pure(epsilon=0.3, num_rounds=3),)


def test_different_noise_is_never_counted_together():
    different = [
        Gaussian(noise_multiplier=2.0, num_steps=1),
        Gaussian(noise_multiplier=2.0, num_steps=1, user_rho=(1.0, 0.0)),
        Gaussian(noise_multiplier=3.0, num_steps=1),
        SubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.5, num_steps=1),
        SubsampledGaussian(noise_multiplier=2.0, sampling_rate=0.6, num_steps=1),
        Pure(epsilon=0.1),
        Pure(epsilon=0.2),
    ]
    for first, second in itertools.combinations(different, 2):
        assert loss.merged([first, second]) == (first, second)
    assert loss.merged([Gaussian(noise_multiplier=2.0, num_steps=0)]) == ()


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_totals_are_those_of_the_decimals(tenths):
    assert loss.total(tenth / 10 for tenth in tenths) == sum(tenths) / 10
    assert loss.total([]) == 0
    assert loss.total([math.inf, 1.0]) == loss.times(math.inf, 2) == math.inf
    assert loss.times(0.1, 3) == loss.total([0.1] * 3) == 0.3


GOOD: dict[type, dict] = {
    Gaussian: {"noise_multiplier": 1.0, "num_steps": 1},
    SubsampledGaussian: {"noise_multiplier": 1.0, "sampling_rate": 0.5, "num_steps": 1},
    Pure: {"epsilon": 1.0, "num_rounds": 1},
    Approximate: {"epsilon": 1.0, "delta": 1e-6, "num_steps": 1},
    BestOf: {"run": (Gaussian(noise_multiplier=1.0, num_steps=1),), "stop": 0.5, "shape": 0.0},
}
BAD = {
    "stop": (0.0, -0.1, 1.1, math.nan),
    "shape": (-1.0, math.inf, math.nan),
    "noise_multiplier": (0.0, -1.0, math.inf, math.nan),
    "num_steps": (-1,),
    "num_rounds": (0, -1),
    "sampling_rate": (0.0, -0.1, 1.1, math.nan),
    "delta": (0.0, 1.0, -1e-9, math.nan),
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, name, value)
        for kind, good in GOOD.items()
        for name in good
        if name in BAD
        for value in BAD[name]
    ]
    + [(kind, "epsilon", value) for kind in (Pure, Approximate) for value in (-1.0, math.nan)]
    + [
        (Gaussian, "user_rho", value)
        for value in ((0.1, 0.1), (-1.0, 2.0), (math.nan, 1.0), (math.inf, 0.0))
    ],
)
def test_values_out_of_range_are_refused(kind, name, value):
    kind(**GOOD[kind])
    with pytest.raises(ValueError, match=f"{name} must be"):
        kind(**{**GOOD[kind], name: value})


def test_wrong_types_are_refused_without_a_type_checker():
    code = """
from accounting.loss import Gaussian, Pure
for make in (
    lambda: Gaussian(noise_multiplier=1.0, num_steps=1.5),
    lambda: Gaussian(noise_multiplier="1", num_steps=1),
    lambda: Gaussian(noise_multiplier=1.0, num_steps=True),
    lambda: Gaussian(noise_multiplier=True, num_steps=1),
    lambda: Pure(epsilon=None), lambda: Pure(epsilon=1.0, num_rounds="2"),
):
    try:
        print(make())
    except ValueError as error:
        print("refused:", error)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split(":")[0] for line in output.splitlines()] == ["refused"] * 6


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "smoke"},
        {},
        {"kind": "pure"},
        {"kind": "pure", "epsilon": 1.0, "num_rounds": 1, "rounds": 1},
        {"kind": "gaussian", "noise_multiplier": 1.0, "num_steps": 1, "user_rho": [1.0]},
        {"kind": "gaussian", "noise_multiplier": "inf", "num_steps": 1},
        {"kind": ["pure"], "epsilon": 1.0},
    ],
)
def test_json_of_another_shape_is_refused(values):
    with pytest.raises(ValueError, match=r"loss|must be"):
        loss.from_dict(values)


def test_units_are_ours():
    for unit in ("rating value", "rating presence", "user"):
        assert loss.check_unit(unit) == unit
    with pytest.raises(ValueError, match="unit must be one of"):
        loss.check_unit("country")


def test_every_kind_of_loss_has_a_name():
    assert set(GOOD) == set(Loss.__args__)
