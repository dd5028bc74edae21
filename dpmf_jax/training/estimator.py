"""A private recommender in the shape of scikit-learn's regressors."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpmf_jax.errors import UsageError
from dpmf_jax.models.model import Model
from dpmf_jax.training.by_name import fit


class PrivateRecommender(RegressorMixin, BaseEstimator):
    """`dpmf_jax.fit` as `fit(X, y)` and `predict(X)`, for pipelines and cross-validation.

    A row of X is a user and an item, by raw ids; y is the rating. Nothing is held out and nothing
    compared: whoever validates does both.

    Every fit without a `seed` spends the price of `guarantee_` on the people in X. Choosing
    settings by scores of many fits spends the price of all of them, and the scores are not priced
    at all: search with a seed, on ratings that are public.

    Args:
      mechanism, rating_range, epsilon, seed, population, catalogue_users, catalogue_items: see
        `dpmf_jax.fit`. Where a fold may lack a user or an item, declare the catalogue.
      settings: further arguments of `dpmf_jax.fit`, by name.

    Attributes:
      model_: the `Model` that `fit` made.
      guarantee_: what it promises.
      n_features_in_: 2.
    """

    model_: Model

    # Types are those of `dpmf_jax.fit`, which checks them: scikit-learn wants no check before.
    def __init__(
        self,
        mechanism: Any = "als",
        *,
        rating_range: Any = None,
        epsilon: Any = None,
        seed: Any = None,
        population: Any = None,
        catalogue_users: Any = None,
        catalogue_items: Any = None,
        settings: Any = None,
    ):
        self.mechanism = mechanism
        self.rating_range = rating_range
        self.epsilon = epsilon
        self.seed = seed
        self.population = population
        self.catalogue_users = catalogue_users
        self.catalogue_items = catalogue_items
        self.settings = settings

    def fit(self, X: Any, y: Any) -> PrivateRecommender:
        """Trains on the ratings y of the pairs X, [n, 2].

        Raises: UsageError for pairs of another shape; what `dpmf_jax.fit` raises.
        """
        user, item = _pairs(X)
        options: dict[str, Any] = {"test_fraction": 0.0, "controls": "none"}
        if self.epsilon is not None:
            options["epsilon"] = self.epsilon
        self.model_ = fit(
            (user, item, np.asarray(y)),
            self.mechanism,
            rating_range=self.rating_range,
            seed=self.seed,
            population=self.population,
            catalogue_users=self.catalogue_users,
            catalogue_items=self.catalogue_items,
            **(options | dict(self.settings or {})),
        )
        self.n_features_in_ = 2
        return self

    def predict(self, X: Any) -> np.ndarray:
        """float32[n]: the predicted ratings of pairs; see `Model.predict`.

        Raises: NotFittedError before `fit`; UsageError for pairs of another shape; DataError for an
          id that is not in the catalogue.
        """
        check_is_fitted(self)
        return self.model_.predict(*_pairs(X))

    @property
    def guarantee_(self) -> Any:
        """The guarantee of the last fit."""
        check_is_fitted(self)
        return self.model_.guarantee


def _pairs(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """The columns of users and items; a DataFrame's may have types of their own."""
    if hasattr(X, "iloc"):
        columns = [X.iloc[:, place].to_numpy() for place in range(X.shape[1])]
    else:
        rows = np.asarray(X)
        columns = list(rows.T) if rows.ndim == 2 else []
    if len(columns) != 2:
        raise UsageError(
            f"X has the shape {np.shape(X)}; a row of it is a user and an item",
            where="X",
            fix="give an array or a DataFrame of two columns, with the ratings as y",
        )
    return columns[0], columns[1]
