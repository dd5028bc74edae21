"""Factors by noisy gradient steps on Poisson samples: Langevin dynamics and dense DP-SGD.

The energy is U = ½Σe² + ½λ(‖P‖² + ‖Q‖²), e = r - center - p·q (paper 002, (11), (12)). Its sum over
ratings is estimated by 1/q times a sample's; its prior is exact. A step of Langevin dynamics is
θ - η_t∇U + √(2η_tT)·N on every row, rated or not.

- `mechanism`  as published, no clip: no guarantee. Paper 002 writes √η, which is T = ½ and aims at
  exp(-2U).
- `dp`         sound: each rating's gradient (both rows, one vector) is clipped to C, and the noise
  is priced step by step.
- `dpsgd`      sound: the same steps with noise z·C on the clipped sum, whatever the step size.

A step of `dp` is a step of `dpsgd` with z_t = q√(2T/η_t)/C: both are
θ - η_t(λθ + (Σclip(g) + N(0, σ²))/q), and their noise has standard deviation
η_t·z_t·C/q = √(2η_tT). With one step size for all steps they are therefore one algorithm under two
names, T = η(zC/q)²/2, and equally good at equal ε. Where step sizes fall they are two: `dpsgd`'s z
stays, `dp`'s grows as √(1/η_t).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

import accounting
from accounting.guarantee import Guarantee
from dpmf_jax.kernels.descent import bias_rows
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.sampled import sampled
from dpmf_jax.mechanisms.sampled.guarantee import langevin_guarantee, sampled_guarantee
from dpmf_jax.mechanisms.sampled.sampled import Config as Config
from dpmf_jax.mechanisms.sampled.sampled import Params
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Poisson, Release, State


class Public(NamedTuple):
    """A function of past responses and public constants.

    user_factors: float32[users, rank].
    item_factors: float32[items, rank].
    center: float32[], subtracted from the ratings.
    """

    user_factors: jax.Array
    item_factors: jax.Array
    center: jax.Array


def mechanism(config: Config) -> Mechanism:
    """Factors by stochastic gradient Langevin dynamics at temperature T, as published.

    Those of the last step are one approximate draw from exp(-U/T). Releases both factors and the
    centre. Nothing is clipped (`clip_norm` is not read), so one rating moves a step without bound.

    Guarantee: none.
    Departs from the paper: √(2η_tT) for √η; the sum's gradient is estimated from Poisson samples.
    """
    return _mechanism(sampled.langevin_params(config, clip=False), _published_guarantee)


def dp(config: Config) -> Mechanism:
    """Factors by Langevin dynamics on clipped gradients, priced as J sampled Gaussian steps.

    Step t has z_t = q√(2T/η_t)/C. T = 1 is Langevin's noise for the posterior. Clipping changes
    what the steps aim at, so this is no draw from it, and nothing is assumed of convergence. With
    one step size it is `dpsgd`. Releases both factors and the centre.

    Guarantee: Poisson-sampled Gaussian steps by dp_accounting, proved for real-number noise; unit
      `config.unit`: a rating added or removed (Δ = C), or another value (Δ = 2C).
    """
    return _mechanism(sampled.langevin_params(config, clip=True), _langevin_guarantee)


def dpsgd(config: Config) -> Mechanism:
    """Factors by dense DP-SGD: N(0, (zC)²) on every entry of the sum of clipped gradients.

    Releases both factors and the centre.

    Guarantee: as `dp`'s with z = `config.noise_multiplier` at every step.

    Raises: PrivacyError without a noise multiplier.
    """
    return _mechanism(sampled.dpsgd_params(config), _dpsgd_guarantee)


def _mechanism(params: Params, guarantee: Any) -> Mechanism:
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(sampled.coins, params.rate),
        query=Partial(_query, params),
        noise=noise.gaussian(params.noise_scale),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(guarantee, params),
    )


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    users, items = bias_rows(key, data.num_users, data.num_items, params.rank)
    center = params.center if previous is None else previous.center
    return State(Public(users, items, center), None, jnp.int32(0))


def _query(
    params: Params, state: State, data: Layout, coins: Poisson
) -> tuple[tuple[jax.Array, jax.Array], Info]:
    """-Σ of the clipped gradients times w_t: float32[users, rank], float32[items, rank]."""
    users, items, center = state.public
    drawn = sampled.sample(params, data, coins)
    p, q = users.at[drawn.user].get(mode="clip"), items.at[drawn.item].get(mode="clip")
    error = sampled.residuals(drawn, p, q, center)
    both = error[:, None] * jnp.concatenate([q, p], 1)
    ratio = jnp.linalg.norm(both / params.clip_norm, axis=1)
    scale = sampled.clip_scale(params, ratio, sampled.at_step(params, state.step)[0], both.shape[1])
    both = jnp.where(scale[:, None] > 0, scale[:, None] * both, 0.0)
    rank = users.shape[1]
    total = (
        jnp.zeros_like(users).at[drawn.user].add(both[:, :rank], mode="drop"),
        jnp.zeros_like(items).at[drawn.item].add(both[:, rank:], mode="drop"),
    )
    return total, sampled.info(drawn, error, ratio)


def _update(
    params: Params, state: State, response: tuple[jax.Array, jax.Array], data: Layout
) -> State:
    del data  # post-processing of the response
    users, items, center = state.public
    users, items = sampled.descend(params, state.step, (users, items), response)
    return state._replace(public=Public(users, items, center))


def _release(state: State) -> Release:
    return Release(*state.public)


# --- guarantees

_RELEASED = ("user factors", "item factors")


def _published_guarantee(params: Params, num_steps: int) -> Guarantee:
    del params
    return accounting.no_guarantee(
        mechanism="langevin-published",
        num_steps=num_steps,
        released=_RELEASED,
        unit="rating presence",
        reason=(
            "one rating's gradient has no bound, so no noise hides it; an exact draw from the"
            " posterior is what the paper's argument needs, and a finite number of steps makes none"
        ),
    )


def _langevin_guarantee(params: Params, num_steps: int) -> Guarantee:
    made = langevin_guarantee(
        sampled.phases(params, num_steps),
        delta=float(params.delta),
        clip_norm=float(params.clip_norm),
        unit=params.unit,
        released=_RELEASED,
    )
    return sampled.with_assumptions(made, params)


def _dpsgd_guarantee(params: Params, num_steps: int) -> Guarantee:
    made = sampled_guarantee(
        sampled.phases(params, num_steps),
        delta=float(params.delta),
        clip_norm=float(params.clip_norm),
        unit=params.unit,
        mechanism="dpsgd",
        released=_RELEASED,
        sketched=False,
    )
    return sampled.with_assumptions(made, params)
