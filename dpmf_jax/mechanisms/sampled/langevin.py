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
from dpmf_jax.kernels import whole_descent
from dpmf_jax.kernels.descent import bias_rows
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.sampled import sampled
from dpmf_jax.mechanisms.sampled.guarantee import langevin_guarantee, sampled_guarantee
from dpmf_jax.mechanisms.sampled.sampled import Config as Config
from dpmf_jax.mechanisms.sampled.sampled import Params
from dpmf_jax.noise import laws, whole
from dpmf_jax.noise.laws import Noise
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
    params = sampled.langevin_params(config, clip=False)
    noise = laws.gaussian(params.noise_scale)
    return _mechanism(params, _published_query, noise, _published_guarantee)


def dp(config: Config) -> Mechanism:
    """Factors by Langevin dynamics on clipped gradients, priced as J sampled Gaussian steps.

    Step t has z_t = q√(2T/η_t)/C. T = 1 is Langevin's noise for the posterior. Clipping changes
    what the steps aim at, so this is no draw from it, and nothing is assumed of convergence. With
    one step size it is `dpsgd`. Releases both factors and the centre.

    Guarantee: Poisson-sampled Gaussian steps by dp_accounting, proved: what a rating contributes is
      whole numbers, and the noise is the rounded normal (`sampled`); unit `config.unit`: a rating
      added or removed (Δ = C), or another value (Δ = 2C).

    Raises: PrivacyError for a temperature so high, or step sizes that fall so far, that the grid
      would be too coarse.
    """
    return _sound(sampled.langevin_params(config, clip=True), _langevin_guarantee)


def dpsgd(config: Config) -> Mechanism:
    """Factors by dense DP-SGD: N(0, (zC)²) on every entry of the sum of clipped gradients.

    Releases both factors and the centre.

    Guarantee: as `dp`'s with z = `config.noise_multiplier` at every step.

    Raises: PrivacyError without a noise multiplier, or for one so large that the grid would be too
      coarse.
    """
    return _sound(sampled.dpsgd_params(config), _dpsgd_guarantee)


def _mechanism(params: Params, query: Any, noise: Noise, guarantee: Any) -> Mechanism:
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(sampled.coins, params.rate),
        query=Partial(query, params),
        noise=noise,
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(guarantee, params),
    )


def _sound(params: Params, guarantee: Any) -> Mechanism:
    return _mechanism(params, _query, whole.rounded_normal(float(params.noise_scale)), guarantee)


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    users, items = bias_rows(key, data.num_users, data.num_items, params.rank)
    center = params.center if previous is None else previous.center
    return State(Public(users, items, center), None, jnp.int32(0))


def _published_query(
    params: Params, state: State, data: Layout, coins: Poisson
) -> tuple[tuple[jax.Array, jax.Array], Info]:
    """-Σ of the gradients times w_t: float32[users, rank], float32[items, rank]."""
    users, items, center = state.public
    drawn = sampled.sample(params, data, coins)
    p, q = users.at[drawn.user].get(mode="clip"), items.at[drawn.item].get(mode="clip")
    offset = center if center.ndim == 0 else center.at[drawn.item].get(mode="clip")
    error = jnp.where(drawn.present, drawn.value - offset - jnp.sum(p * q, 1), 0.0)
    weighted = sampled.at_step(params, state.step)[0] * error[:, None]
    total = (
        jnp.zeros_like(users).at[drawn.user].add(weighted * q, mode="drop"),
        jnp.zeros_like(items).at[drawn.item].add(weighted * p, mode="drop"),
    )
    count = jnp.maximum(jnp.sum(drawn.present), 1)
    return total, Info(jnp.sum(error**2) / count, jnp.float32(0))


def _query(
    params: Params, state: State, data: Layout, coins: Poisson
) -> tuple[tuple[jax.Array, jax.Array], Info]:
    """-Σ of the clipped gradients times w_t, in units: uint32[users, rank], uint32[items, rank]."""
    users, items = (sampled.on_grid(params, rows) for rows in state.public[:2])
    squared = [whole_descent.squared_norm(rows.astype(jnp.int32)) for rows in (users, items)]
    drawn = sampled.sample(params, data, coins)

    def of_rating(of_users: jax.Array, of_items: jax.Array) -> tuple[jax.Array, jax.Array]:
        return of_users.at[drawn.user].get(mode="clip"), of_items.at[drawn.item].get(mode="clip")

    p, q = of_rating(users, items)
    error = sampled.residuals(params, drawn, p, q, state.public.center)
    lengths = jnp.sqrt(sum(of_rating(*squared)))
    corners = (2 * users.shape[1]) ** 0.5
    multiplier, shrunk = sampled.clipped(params, state.step, error, lengths, corners)
    nothing = (jnp.zeros(rows.shape, jnp.uint32) for rows in (users, items))
    of_users, of_items = (
        none.at[at].add(sampled.part(multiplier, rows), mode="drop")
        for none, at, rows in zip(nothing, (drawn.user, drawn.item), (q, p), strict=True)
    )
    return (of_users, of_items), sampled.info(params, drawn, error, shrunk)


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
        clip_norm=sampled.units(params),
        unit=params.unit,
        released=_RELEASED,
    )
    return sampled.with_assumptions(made, params)


def _dpsgd_guarantee(params: Params, num_steps: int) -> Guarantee:
    made = sampled_guarantee(
        sampled.phases(params, num_steps),
        delta=float(params.delta),
        clip_norm=sampled.units(params),
        unit=params.unit,
        mechanism="dpsgd",
        released=_RELEASED,
        sketched=False,
    )
    return sampled.with_assumptions(made, params)
