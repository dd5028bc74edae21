"""Alternating least squares on what users have seen, in phases that run one after the other.

    counts -> factors, T passes

The model (Hu, Koren & Volinsky 2008): every pair that is seen should score 1, and every other one
0, which weighs α₀ as much. In a pass each user solves for her own factors u, given what is public
of the items (`kernels.local_ridge.solve_seen`),

    (Σ_seen v·vᵀ + α₀ Σ_all v·vᵀ + λI) u = Σ_seen v,

with the variances of what is known of v in both sums. She sends how far u is from the public ū,
what the average user would answer: the same vector for each of her m items, weighed by w = 1/√m.
Noise is added to the sum of all messages; what is made of it (`implicit_estimates`) is public, and
is what the next pass starts from. Where she rated, how high is never read.

**Her message.** Let δ = ⌊T·u⌉ - ⌊T·ū⌉, in whole units. The message is that of `messages` with every
residual equal to 1: ⌊s·δ⌉ for each of her m items, with

    s = min(κ·w, (Δ - √(m·d)/2)/(√m·‖δ‖)).

Rounding moves each of its m·d entries by at most a half, so its norm is at most
s·√m·‖δ‖ + √(m·d)/2 ≤ Δ. The clip is 2^-18 shorter than Δ for what float32 rounds in s. No entry of
δ exceeds 2^15, so its squared norm is computed as `whole_descent.squared_norm` says. δ and m are
functions of her own list and of what is public, the same to the bit in any company; so is the
message. Without her it is missing, and nobody else's moves: Δ is the L2 sensitivity for a user
added or removed, and 2Δ for one who is replaced.

**Counts.** She sends ⌊Δ(1 - 2^-20)/√m⌋ for each of her items: a vector of norm Δ at most.

**One Gram matrix.** She adds p·pᵀ with p = ⌊√g·δ⌉, ‖p‖² ≤ Δ' (`messages.gram`). An item has none of
its own: it is taken for its noisy count times this one for all, and what is not seen weighs in
proportion to it, too. Both sums of a pass are one vector, of norm √(Δ² + Δ'²).

After Chien et al. ("Private alternating least squares", 2021). It departs from them: a user's whole
message is clipped, in one norm, and is what she differs by from the average user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from dpmf_jax import layout
from dpmf_jax.devices import spread
from dpmf_jax.errors import UsageError
from dpmf_jax.kernels import local_ridge, steady, whole_descent
from dpmf_jax.kernels.local_ridge import Users
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms import claims, grid
from dpmf_jax.mechanisms.als import estimates, messages
from dpmf_jax.mechanisms.als import implicit_estimates as made_of
from dpmf_jax.mechanisms.als.implicit_config import Config
from dpmf_jax.mechanisms.als.implicit_estimates import LENGTH, USER_RADIUS, Asked, Weights
from dpmf_jax.mechanisms.als.implicit_params import (
    Params,
    guarantee,
    halvings,
    make_params,
    weights,
)
from dpmf_jax.noise import whole
from dpmf_jax.protocol import Info, Mechanism, Phase, Release, State

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings


class Public(NamedTuple):
    """A function of past responses and public constants.

    count: float32[items], noisy Σ w. asked: what users answer to; None before there are factors.
    item_factors: float32[items, d], `asked.units` in their unit; one column of zeros without.
    center: float32[items], the counts times a power of 2: the score where there are no factors,
      else next to nothing, which tells equal scores apart.
    """

    count: jax.Array
    asked: Asked | None
    item_factors: jax.Array
    center: jax.Array


class Private(NamedTuple):
    """What never leaves the users, or the curator for them.

    user_factors: float32[users, d]. units: float32[users, d], the same in whole numbers.
    count: float32[users], m.
    """

    user_factors: jax.Array
    units: jax.Array
    count: jax.Array


def phases(config: Config) -> tuple[Phase, ...]:
    """All phases, in order; they cost what one step with `config.noise_multiplier` costs.

    Releases item factors, their posterior variances and unit, and noisy counts; nothing of a user.
    A score is count·2^-k + ⟨u, v_i⟩. Without factors items are ranked by their noisy counts.

    Guarantee: of all phases together, exact Gaussian composition over adaptive steps, joint, for a
      user (`config.relation`), proved: messages of whole numbers are bounded by construction
      (above), and the noise is the rounded normal (`noise.whole`).

    Raises: PrivacyError for a price for which the noise's grid would be too coarse.
    """
    of_counts, of_factors = config.clips()
    counts = _mechanism(
        make_params(
            config, (of_counts,), 0.0, released=("noisy counts",), name="als-implicit-counts"
        ),
        _init_counts,
        _query_counts,
        _update_counts,
    )
    if not config.num_passes:
        return ((counts, 1),)
    released = "item factors", "their posterior variances", "a Gram matrix"
    factors = _mechanism(
        make_params(
            config, of_factors, config.gram_share, released=released, name="als-implicit-factors"
        ),
        _init_factors,
        _query_factors,
        _update_factors,
    )
    return (counts, 1), (factors, config.num_passes)


def _mechanism(params: Params, init: Any, query: Any, update: Any) -> Mechanism:
    return Mechanism(
        init=Partial(init, params),
        coins=Partial(claims.no_coins),
        query=Partial(query, params),
        noise=whole.rounded_normal(float(params.noise_scale)),
        update=Partial(update, params),
        release=Partial(_release),
        guarantee=Partial(guarantee, params),
    )


def _release(state: State) -> Release:
    public, asked = state.public, state.public.asked
    release = Release(item_factors=public.item_factors, center=public.center)
    if asked is None:
        return release
    variance = asked.unit**2 * asked.variance
    return release._replace(factor_variance=variance, factor_unit=asked.unit)


def _at(per_step: jax.Array, state: State) -> jax.Array:
    return per_step[jnp.minimum(state.step, len(per_step) - 1)]


# --- counts


def _number(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    del row, columns, values
    return jnp.sum(present)


def _counted(params: Params, count: jax.Array) -> Public:
    factors = jnp.zeros((len(count), max(params.rank, 1)), jnp.float32)
    return Public(count, None, factors, 2.0**-params.halvings * count)


def _init_counts(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del key, previous
    count = layout.sum_by_user(data, _number, (), ())
    nothing = jnp.zeros((data.num_users, max(params.rank, 1)), jnp.float32)
    public = _counted(params, jnp.zeros(data.num_items, jnp.float32))
    return State(public, Private(nothing, nothing, count), jnp.int32(0))


def _sent_weight(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    del row, values
    return jnp.sum((present * columns).astype(jnp.int32))


def _query_counts(
    params: Params, state: State, data: Layout, coins: None
) -> tuple[jax.Array, Info]:
    del coins
    clip = _at(params.clip, state)[0]
    weight = jnp.floor(clip * (1 - 2.0**-20) / jnp.sqrt(jnp.maximum(state.private.count, 1.0)))
    total = layout.sum_by_item(data, _sent_weight, (), weight)
    # A score of 0 for every pair that is seen.
    info = Info(jnp.float32(1), jnp.float32(0))
    return jax.lax.bitcast_convert_type(total, jnp.uint32), info


def _update_counts(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    del data
    count = grid.in_units(response) / _at(params.clip, state)[0]
    return state._replace(public=_counted(params, count))


# --- factors


def _init_factors(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    count = jnp.zeros(data.num_items, jnp.float32) if previous is None else previous.count
    number = jax.lax.bitcast_convert_type(jnp.abs(count[0]), jnp.int32)
    public = _alike(_first, number, (params, key, count), data)
    return State(public, _solve(public.asked, data), jnp.int32(0))


def _alike(make: Any, number: jax.Array, given: tuple[Any, ...], data: Layout) -> Any:
    """The `Public` of `make(given)`, on every device, of the same bits however many there are.

    number: int32[], any that is at least 0 and that the compiler does not know.
    """
    return spread.by_each(data.num_devices, steady.alike(make), steady.hidden_zero(number), given)


def _first(given: tuple[Any, ...]) -> Public:
    params, key, count = given
    random = jax.random.normal(key, (len(count), params.rank), jnp.float32)
    positive = estimates.positive_counts(count, params.count_deviation)
    factors = made_of.first_factors(random, positive, params.weights)
    return _published(params, count, factors, 0 * factors)


def _published(params: Params, count: jax.Array, factors: jax.Array, variance: jax.Array) -> Public:
    positive = estimates.positive_counts(count, params.count_deviation)
    balanced = made_of.balanced(factors, variance, positive, params.weights)
    on = made_of.on_grid(*balanced)
    asked = made_of.questions(*on, positive, params.weights)
    return Public(count, asked, asked.unit * asked.units, 2.0**-params.halvings * positive)


def _solve(asked: Asked, data: Layout) -> Private:
    found, count = local_ridge.solve_seen(asked.units, asked.variance, asked.matrix, data)
    units = whole_descent.on_grid(found, USER_RADIUS / asked.per_unit, USER_RADIUS).units
    zero = steady.hidden_zero(jax.lax.bitcast_convert_type(asked.unit, jnp.int32))
    return Private(steady.alike(_in_factors)(zero, units, asked), units, count)


def _in_factors(units: jax.Array, asked: Asked) -> jax.Array:
    return units / (asked.per_unit * asked.unit)


def _squared(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    """Of one user: Σ(1 - score)², for the curator's eyes."""
    del values
    missed = present * (1 - columns @ row)
    return missed @ missed


def _sent(params: Params, state: State, kappa: jax.Array) -> tuple[Users, messages.Sent]:
    """(deviations from the average user, how much of them each user sends)."""
    private, clip = state.private, _at(params.clip, state)[0]
    deviations = jnp.where((private.count > 0)[:, None], private.units - state.public.asked.mean, 0)
    users = Users(jnp.zeros_like(private.count), deviations)
    norms = jnp.zeros_like(private.count), private.count  # every residual is 1
    return users, messages.scales(users, private.count, norms, clip, kappa, rank=params.rank)


def _of_item(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> jax.Array:
    """int32[d]: the sum of what those send who have seen one item."""
    del row, values
    deviations, scale = columns
    # Whole numbers, then one product, and one rounding: no two programs differ.
    sent = jnp.round(scale[:, None] * (present[:, None] * deviations))
    return jnp.sum(sent.astype(jnp.int32), axis=0)


def _query_factors(params: Params, state: State, data: Layout, coins: None) -> tuple[Any, Info]:
    del coins
    public, private, (clip, further) = state.public, state.private, _at(params.clip, state)
    users, sent = _sent(params, state, clip / LENGTH)
    sums = layout.sum_by_item(data, _of_item, (), (users.units, sent.scale))
    kappa = further / (params.weights.gram_clip * LENGTH) ** 2
    gram = messages.gram(users, sent, private.count, further, kappa, rank=params.rank)
    missed = layout.sum_by_user(data, _squared, private.user_factors, public.item_factors)
    info = Info(jnp.sum(missed) / data.num_ratings, jnp.mean(sent.fraction < 1))
    return (jax.lax.bitcast_convert_type(sums, jnp.uint32), gram), info


def _update_factors(params: Params, state: State, response: Any, data: Layout) -> State:
    public = _alike(_next, state.step, (params, state.public, state.step, response), data)
    return state._replace(public=public, private=_solve(public.asked, data))


def _next(given: tuple[Any, ...]) -> Public:
    params, public, step, (sums, gram) = given
    clip, further = params.clip[jnp.minimum(step, len(params.clip) - 1)]
    per_unit = LENGTH / clip
    factors = made_of.factors(
        public.asked,
        per_unit * grid.in_units(sums),
        (params.weights.gram_clip * LENGTH) ** 2 / further * grid.in_units(gram),
        estimates.positive_counts(public.count, params.count_deviation),
        per_unit * params.noise_scale,
        params.weights,
    )
    return _published(params, public.count, *factors)


# --- users who were never in training


def fold_in(config: Config, release: Release, ratings: Ratings) -> np.ndarray:
    """float32[users, d]: factors of users old and new, each from the release and from own items.

    On the same kind of device a row has the bits of the training. A user who has seen nothing has
    zeros.

    Raises: UsageError for a release of no such model.
    """
    if release.item_factors is None or release.center is None:
        raise UsageError("the model releases no item factors", fix="fit again with `dpmf fit`")
    columns = np.shape(release.item_factors)[1]
    if columns != max(config.rank, 1) or (config.rank and release.factor_variance is None):
        raise UsageError(
            f"the model's release is not what its settings say: rank {config.rank}",
            where="settings in model.json",
            fix="fit again with `dpmf fit`",
        )
    rows = np.zeros((ratings.num_users, columns), np.float32)
    if not config.rank or not ratings.num_ratings:
        return rows
    unit = float(np.asarray(release.factor_unit))
    whole_numbers = (
        np.rint(np.asarray(release.item_factors, np.float64) / unit),
        np.rint(np.asarray(release.factor_variance, np.float64) / unit**2),
    )
    given = *whole_numbers, unit, np.asarray(release.center) * np.float32(2.0 ** halvings(config))
    asked = _asked_again(*(jnp.asarray(part, jnp.float32) for part in given), weights(config))
    # Exact in any layout, so all users at once.
    data = layout.make(ratings, kind="split", num_devices=1)
    return np.asarray(jax.jit(_factors_of)(asked, data))


@jax.jit
def _asked_again(units: Any, variance: Any, unit: Any, count: Any, weights: Weights) -> Asked:
    zero = steady.hidden_zero(jax.lax.bitcast_convert_type(unit, jnp.int32))
    return steady.alike(made_of.questions)(zero, units, variance, unit, count, weights)


def _factors_of(asked: Asked, data: Layout) -> jax.Array:
    return _solve(asked, data).user_factors


def config_of(settings: Mapping[str, Any]) -> Config:
    """The settings of a model as they were.

    Raises: UsageError for those of another model.
    """
    from dpmf_jax.mechanisms.spec import config_values

    try:
        return Config(**config_values(Config, settings))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the model's settings are not those of {settings.get('mechanism')}: {error}",
            where="settings in model.json",
            fix="fit again with `dpmf fit`, which keeps them",
        ) from None
