"""What every private fit is compared with: means, popularity, and a factorisation.

None of it is private, except `noisy_item_means`, which says its price.

Each control is a `Factors`: center[i] + ⟨user_factors[u], item_factors[i]⟩, so whatever takes a
model takes a control. Predictions leave the declared rating range here and there; `metrics` clips
them by default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.gaussian import solve_rho
from dpmf_jax import layout, protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import hosts
from dpmf_jax.errors import DataError, PrivacyError, UsageError
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.models import metrics
from dpmf_jax.protocol import Factors


class NoisyItemMeans(NamedTuple):
    """Item means with their price.

    factors: predictions; rho: ρ of zero-concentrated differential privacy for one `unit`, which is
    "rating value" or "rating presence"; sensitivity: L2, of the released sums (and counts);
    noise_scale: σ = sensitivity/√(2ρ). A user with m ratings pays m·ρ: each lies in another item.
    """

    factors: Factors
    rho: float
    unit: str
    sensitivity: float
    noise_scale: float


def global_mean(train: Ratings) -> Factors:
    """Predicts the mean of the training ratings everywhere. Not private.

    Raises:
      DataError: no ratings.
    """
    return metrics.constant(train, _mean(train))


def item_means(train: Ratings) -> Factors:
    """Predicts each item's mean training rating; an item without one, the global mean. Not private.

    Raises:
      DataError: no ratings.
    """
    overall = _mean(train)
    count = hosts.total(np.bincount(train.item, minlength=train.num_items))
    weights = train.value.astype(np.float64)
    total = hosts.total(np.bincount(train.item, weights=weights, minlength=train.num_items))
    means = np.where(count > 0, total / np.maximum(count, 1), overall)
    return metrics.constant(train, means)


def popularity(train: Ratings) -> Factors:
    """Scores of items by the number of their training ratings: one order for all users.

    These are no predictions.

    Not private, but free where who rated what is public: it reads no value of a rating.

    Raises:
      DataError: no ratings.
    """
    _mean(train)
    return metrics.popularity(train)


def biased_mf(
    train: Ratings,
    *,
    rank: int = 10,
    num_epochs: int = 20,
    seed: int = 0,
    layout_kind: str = "auto",
) -> Factors:
    """Biased matrix factorisation, r ≈ μ + b_u + b_i + ⟨p_u, q_i⟩: the non-private model to beat.
    Not private.

    Alternating least squares in which each side sees the other's posterior covariance as well as
    its mean (variational Bayes: Lim & Teh 2007; here p_u and b_u are one Gaussian block, as are q_i
    and b_i), so the strength of the ridge need not be guessed: prior variances (one per column of p
    and q, one per bias) and the noise variance are re-estimated in every epoch. What is returned
    are the posterior means: one model, no ensemble.

    Defaults: chosen among ranks 8 to 16 and 10 to 30 epochs, on a fifth held out of u1.base of
    MovieLens 100K (two draws), on a fifth held out of the training part of fold 0 of MovieLens 1M,
    and on generated ratings; from 20 epochs on they differ by at most 0.0022 on each of these.
    Confirmed on the test parts: official u1-u5, RMSE 0.9168, 0.9078, 0.9028, 0.9041, 0.9066, mean
    0.908; MovieLens 1M, 5 random folds, mean 0.844. In a cross-validation the other folds' test
    ratings are part of the training ratings that defaults were chosen on: only u1 (0.9168) and fold
    0 (0.8464) are free of that.

    Args:
      train: ratings. rank: columns of p and q. num_epochs: passes over users and items.
      seed: of the first q; another one moved the held-out RMSE by up to 0.004 (100K) and 0.001
        (1M).
      layout_kind: see `layout.make`.

    Returns: Factors of rank + 1 columns: user_factors (p_u, b_u), item_factors (q_i, 1), center μ +
      b_i. A user or an item without ratings gets zeros.

    Raises:
      DataError: no ratings. UsageError: rank or num_epochs below 1.
    """
    if rank < 1 or num_epochs < 1:
        raise UsageError(f"rank and num_epochs must be at least 1; got {rank} and {num_epochs}")
    mean = _mean(train)
    num_ratings = int(hosts.total(len(train)))
    deviation = (
        math.sqrt(hosts.total(np.sum((train.value.astype(np.float64) - mean) ** 2)) / num_ratings)
        or 1.0
    )
    standard = ((train.value.astype(np.float64) - mean) / deviation).astype(np.float32)
    data = layout.make(dataclasses.replace(train, value=standard), kind=layout_kind)
    # Drawn on the host: compiling jax.random.normal takes longer than fitting MovieLens 100K.
    start = 0.1 * np.random.default_rng(seed).standard_normal((train.num_items, rank), np.float32)
    squares = np.float32(hosts.total(np.sum(np.square(standard, dtype=np.float64))))
    users, items = _alternate(data, start, squares, num_epochs)
    if hosts.count() > 1:
        users, items = np.asarray(users), np.asarray(items)
    # Waits for the device, so that a caller's clock times the fit and not its dispatch.
    return jax.block_until_ready(
        Factors(
            user_factors=deviation * users,
            item_factors=jnp.concatenate([items[:, :rank], jnp.ones((train.num_items, 1))], axis=1),
            center=mean + deviation * items[:, rank],
        )
    )


class _Side(NamedTuple):
    """The posterior of (factors, bias) of every row.

    mean: [rows, rank + 1].
    covariance: [rows, rank + 1, rank + 1].
    precision: [rank + 1], of the prior, which rows share.
    """

    mean: jax.Array
    covariance: jax.Array
    precision: jax.Array


@jax.jit
def _alternate(data: layout.Layout, start, squares, num_epochs) -> tuple[jax.Array, jax.Array]:
    """Posterior means (factors, bias) of users and items, [rows, rank + 1].

    The ratings are standardised.

    start: float32[items, rank], the first q. squares: the sum of the squared ratings.
    """
    width = start.shape[1] + 1

    def side(mean: jax.Array) -> _Side:
        covariance = jnp.broadcast_to(0.01 * jnp.eye(width), (len(mean), width, width))
        return _Side(mean, covariance, jnp.full(width, 5.0))

    def epoch(_, carry):
        users, items, variance = carry
        users, _ = _update(partial(layout.sum_by_user, data), users, items, variance)
        items, error = _update(partial(layout.sum_by_item, data), items, users, variance)
        # 1e-3: a floor that keeps the ridge well-conditioned in float32 where the ratings are
        # fitted without error.
        return users, items, jnp.maximum((squares + error) / data.num_ratings, 1e-3)

    first = (
        side(jnp.zeros((data.num_users, width))),
        side(jnp.pad(start, ((0, 0), (0, 1)))),
        jnp.float32(1.0),
    )
    users, items, _ = jax.lax.fori_loop(0, num_epochs, epoch, first)
    return users.mean, items.mean


def _update(
    sum_by: Callable[..., Any], own: _Side, other: _Side, variance: jax.Array
) -> tuple[_Side, jax.Array]:
    """The posterior of one side given the other's, and then E[Σ(r̂² - 2·r̂·r)] over the ratings.

    With a = (factors', 1, bias') of the other side, a rating is a·(factors, bias, 1) plus noise:
    least squares in (factors, bias) with regressors (factors', 1) and the target r - bias'.
    """
    width = own.mean.shape[1]
    mean = jnp.insert(other.mean, width - 1, 1.0, axis=1)
    covariance = jnp.insert(
        jnp.insert(other.covariance, width - 1, 0.0, axis=1), width - 1, 0.0, axis=2
    )
    upper, unfold = _triangle(width + 1)
    second = (mean[:, :, None] * mean[:, None, :] + covariance)[:, upper[0], upper[1]]
    folded, right = sum_by(_normal_equations, (), (second, mean))
    gram = folded[:, unfold]

    precision = gram[:, :width, :width] / variance + jnp.diag(own.precision)
    target = (right[:, :width] - gram[:, :width, width]) / variance
    covariance = _inverse(precision)
    own_mean = jnp.einsum("nij,nj->ni", covariance, target, precision="highest")

    rated = gram[:, width - 1, width - 1] > 0
    second_own = own_mean**2 + jnp.diagonal(covariance, axis1=1, axis2=2)
    spread = jnp.sum(jnp.where(rated[:, None], second_own, 0), axis=0) / jnp.maximum(
        jnp.sum(rated), 1
    )
    z = jnp.pad(own_mean, ((0, 0), (0, 1)), constant_values=1.0)
    z_second = z[:, :, None] * z[:, None, :] + jnp.pad(covariance, ((0, 0), (0, 1), (0, 1)))
    error = jnp.sum(gram * z_second) - 2 * jnp.sum(right * z)
    return _Side(own_mean, covariance, 1 / jnp.clip(spread, 1e-6, 1e3)), error


def _inverse(matrices: jax.Array) -> jax.Array:
    """Inverses of symmetric positive definite matrices, float32[n, width, width], pivot by pivot.

    No LAPACK: jaxlib's batched factorisations wait for a free thread of the pool that runs them, so
    in a program spread over as many CPU devices as that pool has threads they wait for ever (jaxlib
    0.10.2, two devices on two cores).
    """

    def sweep(k: jax.Array, swept: jax.Array) -> jax.Array:
        column = swept[:, :, k]
        pivot = column[:, k, None]
        scaled = column / pivot
        swept = swept - scaled[:, :, None] * column[:, None, :]
        swept = swept.at[:, :, k].set(scaled).at[:, k, :].set(scaled)
        return swept.at[:, k, k].set(-1 / pivot[:, 0])

    return -jax.lax.fori_loop(0, matrices.shape[-1], sweep, matrices)


def _normal_equations(row: Any, columns: Any, values: jax.Array, present: jax.Array):
    """For one row: (Σ E[aaᵀ], folded; Σ r·E[a])."""
    del row
    second, mean = columns
    return present @ second, values @ mean


def _triangle(size: int):
    """(indices of the upper triangle, [size, size] positions in it).

    Symmetric matrices move at half the memory traffic so.
    """
    upper = np.triu_indices(size)
    unfold = np.zeros((size, size), np.int32)
    unfold[upper] = np.arange(len(upper[0]))
    return upper, np.maximum(unfold, unfold.T)


def noisy_item_means(
    train: Ratings,
    key: jax.Array,
    *,
    rho: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: Literal["rating value", "rating presence"] = "rating value",
) -> NoisyItemMeans:
    """Item means from sums with Gaussian noise: a private control. Spends `key`.

    It costs ρ in zCDP for one rating.

    The one step of `dpmf_jax.noisy_means`: Δ is 2h for "rating value" and √2·h for "rating
    presence", h half the width of the declared range. A changed value costs 2ρ under "rating
    presence".

    Args:
      rho: the price; or else epsilon and delta, from which the largest exact ρ is solved.

    Raises:
      UsageError: not exactly one of rho and (epsilon, delta), or not positive and finite.
        ValueError: another relation.
      PrivacyError: a rating outside the declared range, which would be clipped.
    """
    if rho is None and epsilon is not None and delta is not None:
        rho = solve_rho(epsilon, delta)
    elif rho is None or epsilon is not None or delta is not None:
        raise UsageError("noisy_item_means takes either rho or both epsilon and delta")
    if not 0 < rho < math.inf:
        raise UsageError(f"rho must be positive and finite; got {rho}")
    low, high = train.rating_range
    if not bool(np.all((train.value >= low) & (train.value <= high))):
        raise PrivacyError(
            f"a rating lies outside the declared range {low:g} to {high:g}", fix="clip the ratings"
        )
    config = noisy_means.Config(
        rating_range=(low, high), noise_multiplier=math.sqrt(0.5 / rho), relation=relation
    )
    made = noisy_means.mechanism(config)
    init_key, train_key = jax.random.split(key)
    data = layout.make(train)
    state, _info = protocol.train(made, train_key, protocol.begin(made, init_key, data), data, 1)
    sensitivity = config.sensitivity_in_widths * (high - low)
    scale = sensitivity * config.noise_multiplier
    return NoisyItemMeans(
        metrics.constant(train, state.public.center), float(rho), relation, sensitivity, scale
    )


CONTROLS: dict[str, Callable[[Ratings], Factors]] = {
    "global_mean": global_mean,
    "item_means": item_means,
    "popularity": popularity,
    "biased_mf": biased_mf,
}
NAMES = tuple(CONTROLS)
COSTLY = "biased_mf"  # left out of the simple ones
K = 10  # of the NDCG beside a fit
NO_ERRORS, NO_ORDER = (
    ("popularity",),
    ("global_mean",),
)  # whose scores are no ratings; which scores all items alike


def names_of(
    asked: str | Sequence[str], known: Sequence[str] = NAMES, costly: str = COSTLY
) -> tuple[str, ...]:
    """The controls that "all", "simple" and "none" stand for; names as they are.

    Raises: UsageError for another word or name.
    """
    groups = {
        "all": tuple(known),
        "simple": tuple(name for name in known if name != costly),
        "none": (),
    }
    if isinstance(asked, str) and asked in groups:
        return groups[asked]
    wanted = (asked,) if isinstance(asked, str) else tuple(asked)
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(
            f"there are no controls {', '.join(map(repr, unknown))}",
            where="--controls",
            fix=f"choose {', '.join(groups)}, or among {', '.join(known)}",
        )
    return wanted


def controls(
    train: Ratings,
    test: Ratings | None,
    *,
    names: Sequence[str] = NAMES,
    more: Mapping[str, tuple[Factors, bool]] | None = None,
    layout_kind: str = "auto",
) -> dict[str, dict[str, float | bool | None]]:
    """RMSE and NDCG@10 of the non-private controls; for the curator's eyes.

    Predictions are clipped to the declared range for the RMSE, not for the ranking.

    Args:
      test: held-out ratings on the same catalogue; None, or empty, makes rmse_test and ndcg_at_10
        None.
      names: of `NAMES`; `biased_mf` at its defaults. layout_kind: of its ratings.
      more: further ones, (model, whether it is private) by name.

    Returns: name -> {"rmse_train": float, or None of `popularity`, "rmse_test": float or None,
      "ndcg_at_10": float, or None of `global_mean`, which has no order of items, "private": whether
      it is}.

    Raises:
      DataError: no training ratings. UsageError: an unknown name.
    """
    unknown = [name for name in names if name not in CONTROLS]
    if unknown:
        raise UsageError(f"unknown control {unknown[0]!r}", fix=f"use {', '.join(CONTROLS)}")
    held_out = test if test is not None and hosts.total(len(test)) else None
    ranked = None if held_out is None else metrics.to_rank(train, held_out)
    result: dict[str, dict[str, float | bool | None]] = {}
    for name in names:
        made = (
            partial(biased_mf, layout_kind=layout_kind) if name == "biased_mf" else CONTROLS[name]
        )
        result[name] = _measured(name, made(train), False, train, held_out, ranked)
    for name, (model, private) in (more or {}).items():
        result[name] = _measured(name, model, private, train, held_out, ranked)
    return result


def _measured(
    name: str,
    factors: Factors,
    private: bool,
    train: Ratings,
    held_out: Ratings | None,
    ranked: tuple[Ratings, Ratings] | None,
) -> dict[str, float | bool | None]:
    errors = name not in NO_ERRORS
    return {
        "rmse_train": metrics.rmse(factors, train) if errors else None,
        "rmse_test": (metrics.rmse(factors, held_out) if errors and held_out is not None else None),
        "ndcg_at_10": None if ranked is None or name in NO_ORDER else ndcg(factors, *ranked),
        "private": private,
    }


def ndcg(factors: Factors, train: Ratings, test: Ratings) -> float | None:
    """NDCG@10 over unseen items, as a fit prints it, on the ratings of `metrics.to_rank`.

    None where no user has a relevant item, or scores are not finite.
    """
    if not all(np.isfinite(np.asarray(part)).all() for part in factors):
        return None
    found = metrics.ndcg_at_k(factors, train, test, k=K)
    return found if math.isfinite(found) else None


def _mean(train: Ratings) -> float:
    num_ratings = int(hosts.total(len(train)))
    if not num_ratings:
        raise DataError(
            "no training ratings", where=train.name, fix="a control needs at least one rating"
        )
    return float(hosts.total(np.sum(train.value.astype(np.float64)))) / num_ratings
