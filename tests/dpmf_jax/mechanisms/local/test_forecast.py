"""What a forecast rests on: the size of entries, what a clip leaves, what a projection gains."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.local import forecast
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local import variance as local_variance
from dpmf_jax.mechanisms.local.forecast import Assumptions
from dpmf_jax.noise import keys
from tests.cases.local import RANK, begun, config

pytestmark = pytest.mark.usefixtures("quick_compilation")


def gaussian_ratings(users: int, items: int, each: int) -> Ratings:
    """Everybody rates `each` items; values are Gaussian, of deviation 1.1 about 3."""
    random = np.random.default_rng(0)
    item = np.concatenate([random.choice(items, each, replace=False) for _ in range(users)]).astype(
        np.int32
    )
    user = np.repeat(np.arange(users, dtype=np.int32), each)
    value = (3 + 1.1 * random.standard_normal(users * each)).astype(np.float32)
    order = np.lexsort((item, user))
    return Ratings(
        user[order], item[order], value[order], np.arange(users), np.arange(items), (-5.0, 11.0)
    )


@pytest.mark.seconds
@pytest.mark.parametrize("q", [None, 5, 60, 400])
def test_the_size_of_entries_and_the_share_beyond_the_clip(q):
    """20,000 users who rate 15 of 60 items, at ‖u‖ = 1 and d = 8: size to 4%, clipped share to
    0.025, any q.
    """
    users, items, each, rank = 20_000, 60, 15, 8
    assumed = Assumptions(ratings_per_user=each)
    size = forecast.entry_deviation(rank, q, assumed)
    data = layout.make(gaussian_ratings(users, items, each), kind="split", num_devices=1)
    for relative in (0.5, 2.0):
        chosen = config(rank=rank, num_projected=q, clip=relative * size)
        made = local.gd(chosen) if q is None else local.gd_dr(chosen)
        if q == 400:
            made = local.gd_dr(dataclasses.replace(chosen, lift="transpose", fresh_projection=True))
        state = begun(made, data)
        factors = jax.random.normal(keys.from_seed(9), (users, rank)) / math.sqrt(rank)
        state = state._replace(private=state.private._replace(user_factors=factors))
        rated = 1.0 if q else each / items
        sent, info = made.query(state, data, keys.from_seed(5))
        clipped = float(info.clipped_fraction) / rated
        assert clipped == pytest.approx(forecast.clipped_share(relative), abs=0.025)
        assert np.mean(np.abs(np.asarray(sent.value)) >= 1) / rated == pytest.approx(
            clipped, abs=1e-3
        )
    wide = dataclasses.replace(made.query.args[0], clip=jnp.float32(1e6))
    entries = (
        np.asarray(made.query.func(wide, state, data, keys.from_seed(6))[0].value, np.float64) * 1e6
    )
    assert np.sqrt(np.mean(entries**2) / rated) == pytest.approx(size, rel=0.04)


@pytest.mark.parametrize("relative", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_a_clip_leaves_a_small_shift_as_stated(relative):
    """x = u·(e + shift·u): the mean of clip(x)·sign is `shrinkage` of the unclipped one, to 4
    standard errors.
    """
    random, shift, num = np.random.default_rng(1), 0.05, 4_000_000
    u, e = random.standard_normal((2, num))
    # the same e with the shift and without it: what the shift adds, with little noise
    added = np.clip(u * (e + shift * u), -relative, relative) - np.clip(u * e, -relative, relative)
    left, error = added.mean() / shift, added.std() / shift / math.sqrt(num)
    assert left == pytest.approx(float(forecast.shrinkage(relative)), abs=4 * error + 0.01)
    beyond = np.mean(np.abs(u * e) > relative)
    assert beyond == pytest.approx(forecast.clipped_share(relative), abs=2e-3)


def test_a_hard_clip_costs_speed_and_hardly_signal_for_the_noise():
    ratio = [float(forecast.shrinkage(w)) / w for w in (1e-6, 0.25, 0.5, 1.0, 2.0, 4.0)]
    assert ratio[0] == pytest.approx(2 / math.pi)
    assert ratio == sorted(ratio, reverse=True)
    assert float(forecast.shrinkage(100.0)) == pytest.approx(1)


@pytest.mark.parametrize("each", [5.0, 100.0])
def test_a_projection_gains_one_over_the_density_at_one_relative_clip_whatever_q_is(each):
    items, assumed = 1000, Assumptions(ratings_per_user=each)

    def variance(q: int | None) -> float:
        clip = 2.0 * forecast.entry_deviation(RANK, q, assumed)
        lift = (
            {} if q is None else {"num_projected": q, "lift": "transpose", "fresh_projection": True}
        )
        return local_variance.step_variance(config(clip=clip, **lift), num_users=1, num_items=items)

    for q in (3, 40, 1000):
        assert variance(None) / variance(q) == pytest.approx(items / each, rel=1e-9)
    # as published the clip is 1, and the noise then grows with q
    ones = [
        local_variance.step_variance(
            config(num_projected=q, lift="transpose"), num_users=1, num_items=items
        )
        for q in (3, 40)
    ]
    assert ones[1] / ones[0] == pytest.approx(40 / 3)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"ratings_per_user": 0.0}, "ratings_per_user"),
        ({"deviation": math.nan}, "deviation"),
        ({"popularity": math.inf}, "popularity"),
        ({"directions": 0}, "directions"),
        ({"largest_rate": -1.0}, "largest_rate"),
        ({"gain": 1.0}, "gain"),
        ({"evenness": 0.0}, "evenness"),
    ],
)
def test_refused_assumptions(bad, told):
    with pytest.raises(ValueError, match=told):
        Assumptions(**bad)
