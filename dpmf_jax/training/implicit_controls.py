"""What a model of seen items is compared with, on users who were never in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models import strong_generalisation
from dpmf_jax.models.model import Model
from dpmf_jax.models.strong_generalisation import Found, HeldOut
from dpmf_jax.protocol import Factors
from dpmf_jax.training.controls import names_of

NAMES = ("noisy_popularity", "popularity", "implicit_als")
COSTLY = "implicit_als"  # left out of the simple ones
PASSES = 10
RIDGE = 1e-3  # of what all items weigh on average, on either side


def judge(
    train: Ratings, test: Ratings | None, controls: str | Sequence[str], *, seed: int
) -> Callable[[Model], dict[str, Any]]:
    """What measures a model on the users that are held out, for `training.fit.fit`: `compared`.

    Args:
      test: of users held out whole; None where nobody is.
      controls: as in `training.controls.names_of`, of `NAMES`.
      seed: of the choice of what is shown of a user.
    """
    users = None
    if test is not None and len(test):
        users = strong_generalisation.held_out(test, seed=seed)
    names = names_of(controls, NAMES, COSTLY)
    return partial(compared, train=train, users=users, names=names)


def compared(
    model: Model, train: Ratings, users: HeldOut | None, names: Sequence[str]
) -> dict[str, Any]:
    """Recall@20 and NDCG@20 of the model and of its controls; for the curator's eyes.

    Args:
      model: of `als-implicit`, trained on `train`. users: None where nobody is held out.
      names: of `NAMES`. noisy_popularity: the counts that the model releases, so private as it is.
        popularity: the number of an item's users. implicit_als: the same model, not private.

    Returns: {recall_at_20, ndcg_at_20, users_evaluated, controls: name -> {recall_at_20,
      ndcg_at_20, private}}; numbers are None where nobody is held out who has something hidden.
    """
    if users is None:
        return _numbers(Found(math.nan, math.nan, 0)) | {"users_evaluated": 0, "controls": {}}
    own = strong_generalisation.scores(_of_new_users(model, users), users)
    rows = users.shown.num_users
    controls = {}
    for name in names:
        if name == "implicit_als":
            made = implicit_als(train, users.shown)
        else:
            noisy = np.asarray(model.release.center)
            exact = np.bincount(train.item, minlength=train.num_items)
            made = _ranked_by(noisy if name == "noisy_popularity" else exact, rows)
        result = strong_generalisation.scores(made, users)
        controls[name] = _numbers(result) | {"private": name == "noisy_popularity"}
    return _numbers(own) | {"users_evaluated": own.users_evaluated, "controls": controls}


def _numbers(result: Found) -> dict[str, float | None]:
    numbers = {"recall_at_20": result.recall, "ndcg_at_20": result.ndcg}
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}


def _of_new_users(model: Model, users: HeldOut) -> Factors:
    return Factors(
        model.fold_in(users.shown), model.release.item_factors, np.asarray(model.release.center)
    )


def _ranked_by(scores: np.ndarray, num_users: int) -> Factors:
    nothing = np.zeros((num_users, 0), np.float32)
    return Factors(nothing, np.zeros((len(scores), 0), np.float32), scores.astype(np.float32))


def implicit_als(
    train: Ratings, shown: Ratings, *, rank: int = 16, unseen_weight: float = 0.1, seed: int = 0
) -> Factors:
    """Alternating least squares on what is seen, without privacy (Hu, Koren & Volinsky 2008).

    Users and items are solved for in turn, each with a Gram matrix of its own. Not private.

    Args:
      train: what is learned from. shown: of the users to recommend to, on the same items.
      unseen_weight: α₀, of a pair that is not seen, where one that is weighs 1. These defaults were
        chosen on generated data (DEFAULTS.md).

    Returns: Factors, user factors of the users of `shown`.
    """
    start = 0.1 * np.random.default_rng(seed).standard_normal((train.num_items, rank), np.float32)
    weight = jnp.float32(unseen_weight)
    items = _alternated(layout.make(train, num_devices=1), jnp.asarray(start), weight)
    users = _answers(layout.make(shown, num_devices=1), items, weight)
    return Factors(np.asarray(users), np.asarray(items), np.zeros(train.num_items, np.float32))


@partial(jax.jit, static_argnames="num_passes")
def _alternated(
    data: layout.Layout, start: Float[Array, "items d"], weight: jax.Array, num_passes: int = PASSES
) -> jax.Array:
    def one(_: Any, items: jax.Array) -> jax.Array:
        users = _answers(data, items, weight)
        return _solved(users, weight, layout.sum_by_item(data, _seen, (), users))

    return jax.lax.fori_loop(0, num_passes, one, start)


@jax.jit
def _answers(data: layout.Layout, items: jax.Array, weight: jax.Array) -> jax.Array:
    return layout.sum_by_user(data, _seen, (), items, then=partial(_solved, items, weight))


def _seen(row: Any, columns: Any, values: jax.Array, present: jax.Array) -> Any:
    del row, values
    shown = present[:, None] * columns
    return shown.T @ columns, jnp.sum(shown, axis=0)


def _solved(
    other: Float[Array, "rows d"], weight: jax.Array, sums: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """The factors of one side, given those of the other and sums over what is seen."""
    gram, right = sums
    of_all = other.T @ other
    ridge = RIDGE * jnp.trace(of_all) * jnp.eye(len(of_all))
    left = gram + weight * of_all + ridge
    return jnp.linalg.solve(left, right[:, :, None])[:, :, 0]
