"""Prices of paper 003's iterations: what messages of one user move is never more than is paid."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import iterations
from accounting.loss import Pure
from accounting.price import rho

NOISES = ["laplace", "l2_laplace", "gaussian"]
CHANGES = ["replace", "remove"]

seeds = st.integers(0, 2**32 - 1)


def test_the_papers_hundred_iterations_at_a_tenth_cost_ten():
    assert iterations.iterations_claimed(0.1, 100) == Pure(epsilon=10.0, num_rounds=100)
    assert iterations.iterations_claimed(0.1, 3).epsilon == 0.3
    assert iterations.iterations_claimed(0.8, 10_000).epsilon == 8000.0


def clipped(noise, message, bound):
    """A message on or inside its clip, and the norm that the noise feels of any message."""

    def norm(value):
        return {
            "laplace": np.abs(value).sum(),
            "l2_laplace": np.linalg.norm(value, axis=1).sum(),
            "gaussian": np.linalg.norm(value),
        }[noise]

    return message * min(1.0, bound / norm(message)), norm


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("noise", NOISES)
@given(
    seed=seeds,
    clip=st.floats(0.1, 10),
    scale=st.floats(0.1, 100),
    num_iterations=st.integers(1, 20),
)
def test_a_users_messages_never_cost_more_than_priced(
    noise, change, seed, clip, scale, num_iterations
):
    random, shape = np.random.default_rng(seed), (4, 3)
    loss = iterations.iterations_per_user(
        noise=noise, clip_norm=clip, scale=scale, num_iterations=num_iterations, change=change
    )
    spent = 0.0
    for _ in range(num_iterations):
        message, norm = clipped(noise, random.normal(size=shape) * 10, clip)
        other = (
            np.zeros(shape)
            if change == "remove"
            else clipped(noise, random.normal(size=shape) * 10, clip)[0]
        )
        distance = norm(message - other) / scale
        spent += distance**2 / 2 if noise == "gaussian" else distance
    assert spent <= (rho([loss]) if noise == "gaussian" else loss.epsilon) * (1 + 1e-9)


@pytest.mark.parametrize(("change", "distance"), [("replace", 2.0), ("remove", 1.0)])
@pytest.mark.parametrize("noise", NOISES)
def test_opposite_messages_cost_what_is_priced(noise, change, distance):
    """ε = T·2C/b and ρ = T·2C²/σ² to replace, T·C/b and T·C²/(2σ²) to remove."""
    loss = iterations.iterations_per_user(
        noise=noise, clip_norm=1.5, scale=6.0, num_iterations=7, change=change
    )
    reached = distance * 1.5 / 6.0
    if noise == "gaussian":
        assert rho([loss]) == pytest.approx(7 * reached**2 / 2, rel=1e-12)
        assert loss.user_rho is None
    else:
        assert loss == Pure(epsilon=7 * reached, num_rounds=7)


def test_replacing_is_the_default():
    spent = {"noise": "gaussian", "clip_norm": 1.0, "scale": 3.0, "num_iterations": 2}
    assert iterations.iterations_per_user(**spent) == iterations.iterations_per_user(
        **spent, change="replace"
    )


@given(seed=seeds, step=st.floats(1e-3, 2))
def test_rounding_towards_zero_keeps_every_clip(seed, step):
    random = np.random.default_rng(seed)
    for noise in NOISES:
        message, norm = clipped(noise, random.normal(size=(4, 3)), 1.0)
        assert norm(step * np.trunc(message / step)) <= 1 + 1e-9


def test_counts_that_are_no_integers_are_refused():
    """In an interpreter of its own: here the types are checked before the function is."""
    code = """
from accounting import iterations
for bad in (2.5, float("nan"), "3", None):
    try:
        iterations.iterations_claimed(0.1, bad)
    except ValueError as error:
        print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    wanted = ["2.5", "nan", "'3'", "None"]
    assert told.splitlines() == [f"num_iterations must be an integer, got {bad}" for bad in wanted]
