"""What the curator measures of a run that is done; none of these numbers is priced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import hosts
from dpmf_jax.errors import DpmfError, UsageError
from dpmf_jax.kernels import descent
from dpmf_jax.models import metrics
from dpmf_jax.protocol import Factors, Key, Phase, State, begin, factors, train
from dpmf_jax.training import controls as baselines

_mean_squared_error = jax.jit(descent.mean_squared_error)


class Diverged(DpmfError, FloatingPointError):
    """Training left the finite numbers, or its model is worse than any constant in range."""


def diverged(rmse_train: float, rating_range: tuple[float, float]) -> bool:
    """Whether a model errs more on its training ratings than any constant of their range can.

    On every rating a constant of the declared range errs by at most the range's width, so its RMSE
    is at most that.
    """
    low, high = rating_range
    return rmse_train > high - low


def curator_model(state: State, ratings: Ratings) -> Factors:
    """The curator's model of a state; the factors of a state that has none are zeros.

    Raises: UsageError where something is missing that a prediction needs.
    """
    known = factors(state)
    if known.user_factors is None and known.item_factors is None:
        users, items = (
            np.zeros((num, 1), np.float32) for num in (ratings.num_users, ratings.num_items)
        )
        known = known._replace(user_factors=users, item_factors=items)
    if missing := [name for name, part in known._asdict().items() if part is None]:
        raise UsageError(
            f"the mechanism's state has no {' and no '.join(missing)}, so its model predicts"
            " nothing",
            fix=(
                "name the fields of its public or private state as those of"
                " dpmf_jax.protocol.Factors"
            ),
        )
    return known


def trained(
    phases: Sequence[Phase], keys: tuple[Key, Key], data: layout.Layout, ratings: Ratings
) -> Factors:
    """The curator's model after the phases; where the last has no steps, the one it starts from.

    Releases nothing. Spends both keys.
    """
    begin_key, train_key = keys
    if hosts.count() > 1:
        begin_key, train_key = layout.replicate(data, (begin_key, train_key))
        phases = [(layout.replicate(data, phase), steps) for phase, steps in phases]
    *before, (program, steps) = phases
    state = begin(program, begin_key, data, before)
    if steps:
        state, _ = train(program, train_key, state, data, num_steps=steps)
    return Factors(*map(np.asarray, curator_model(layout.replicate(data, state), ratings)))


def measure(
    whole: Factors,
    data: layout.Layout,
    ratings: Ratings,
    test: Ratings | None,
    controls: Sequence[str],
    layout_kind: str,
    compared: Mapping[str, tuple[Factors, bool]],
) -> dict[str, Any]:
    """The curator's unpriced numbers: RMSE of training and test, NDCG, and the baselines' own.

    Args:
      compared: more baselines, (model, whether a guarantee like that of `whole` covers it) each.
    """
    rmse_train = math.sqrt(float(_mean_squared_error(*layout.replicate(data, whole), data)))
    if not math.isfinite(rmse_train):
        raise Diverged("diverged in the last step", fix="lower learning_rate (--learning-rate)")
    rmse_test, ndcg, beside = None, None, {}
    if test is not None and hosts.total(test.num_ratings):
        rmse_test = metrics.rmse(whole, test)
        if controls:
            ndcg = baselines.ndcg(whole, *metrics.to_rank(ratings, test))
    if controls:
        kind = layout_kind if layout_kind == "stream" else "auto"
        beside = baselines.controls(
            ratings, test, names=tuple(controls), more=compared, layout_kind=kind
        )
    return {
        "rmse_train": rmse_train,
        "rmse_test": rmse_test,
        "ndcg_at_10": ndcg,
        "ranks_alike": metrics.ranks_alike(whole),
        "diverged": diverged(rmse_train, ratings.rating_range),
        "controls": beside,
    }
