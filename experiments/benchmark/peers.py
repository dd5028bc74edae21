"""Recommenders of other libraries, without privacy, at the settings that their authors chose.

Each is optional, and named where it is not installed. All are models of factors, so all are
measured as ours are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.protocol import Factors


class Peer(NamedTuple):
    """package: what must be installed. errors: whether scores predict ratings."""

    package: str
    fit: Callable[[Ratings, int], Factors]
    errors: bool


def _matrix(train: Ratings):
    import scipy.sparse

    shape = (train.num_users, train.num_items)
    return scipy.sparse.csr_matrix((train.value, (train.user, train.item)), shape)


def _implicit(kind: str) -> Callable[[Ratings, int], Factors]:
    def fit(train: Ratings, seed: int) -> Factors:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as its own warning asks
        from implicit.cpu.als import AlternatingLeastSquares
        from implicit.cpu.bpr import BayesianPersonalizedRanking

        made = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}[kind]
        model = made(random_state=seed)
        seen = _matrix(train)
        seen.data[:] = 1.0
        model.fit(seen, show_progress=False)
        users, items = (np.asarray(part) for part in (model.user_factors, model.item_factors))
        return Factors(users, items, np.zeros(train.num_items, np.float32))

    return fit


def _surprise(train: Ratings, seed: int) -> Factors:
    from surprise import SVD, Trainset

    by_user: dict[int, list[tuple[int, float]]] = {user: [] for user in range(train.num_users)}
    by_item: dict[int, list[tuple[int, float]]] = {item: [] for item in range(train.num_items)}
    columns = (train.user.tolist(), train.item.tolist(), train.value.tolist())
    for user, item, value in zip(*columns, strict=True):
        by_user[user].append((item, value))
        by_item[item].append((user, value))
    inner = [{row: row for row in rows} for rows in (by_user, by_item)]
    given = Trainset(
        by_user, by_item, train.num_users, train.num_items, len(train), train.rating_range, *inner
    )
    model = SVD(random_state=seed).fit(given)
    return _biased(
        given.global_mean, (model.bu, model.bi), (np.asarray(model.pu), np.asarray(model.qi))
    )


def _lenskit(train: Ratings, seed: int) -> Factors:
    import pyarrow
    from lenskit.als import BiasedMFScorer
    from lenskit.data import DatasetBuilder
    from lenskit.training import TrainingOptions

    rows = {"user_id": train.user, "item_id": train.item, "rating": train.value}
    given = DatasetBuilder()
    given.add_interactions(
        "rating", pyarrow.table(rows), entities=["user", "item"], missing="insert", default=True
    )
    model = BiasedMFScorer()
    model.train(given.build(), TrainingOptions(rng=seed))
    factors, biases = [], []
    sides = (
        (model.users, model.user_embeddings, model.bias.user_biases, train.num_users),
        (model.items, model.item_embeddings, model.bias.item_biases, train.num_items),
    )
    for known, learned, bias, number in sides:
        place = np.asarray(known.ids())
        rows_of = np.zeros((number, np.asarray(learned).shape[1]), np.float32)
        rows_of[place], whole = np.asarray(learned), np.zeros(number, np.float32)
        whole[place] = np.asarray(bias)
        factors.append(rows_of)
        biases.append(whole)
    return _biased(float(model.bias.global_bias), tuple(biases), tuple(factors))


def _biased(mean: float, biases: tuple, factors: tuple) -> Factors:
    """μ + b_u + b_i + ⟨p_u, q_i⟩ as `Factors`."""
    (of_users, of_items), (users, items) = biases, factors
    return Factors(
        np.column_stack([users, of_users]).astype(np.float32),
        np.column_stack([items, np.ones(len(items))]).astype(np.float32),
        (mean + np.asarray(of_items)).astype(np.float32),
    )


PEERS = {
    "implicit ALS": Peer("implicit", _implicit("als"), False),
    "implicit BPR": Peer("implicit", _implicit("bpr"), False),
    "Surprise SVD": Peer("surprise", _surprise, True),
    "LensKit biased MF": Peer("lenskit", _lenskit, True),
}
