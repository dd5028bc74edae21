"""The estimator keeps scikit-learn's rules, and fits and predicts as dpmf_jax.fit does."""

import numpy as np
import pandas
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data

import dpmf_jax
from dpmf_jax.errors import DataError, UsageError
from dpmf_jax.training.estimator import PrivateRecommender
from tests.cases import fit as cases

pytestmark = [pytest.mark.usefixtures("quick_compilation"), pytest.mark.seconds]

JOINT = "gaussian-joint-noise"
RANGE = {"rating_range": (1, 5)}
SMALL = {"steps": 2, "rank": 1}
# It wants a score above 0.5 on numbers that are no ratings.
NOT_APPLICABLE = ("check_regressors_train",)


class OfNumbers(PrivateRecommender):
    """scikit-learn's checks know features that are numbers: they become ids here, checked as a
    regressor of numbers checks them.
    """

    def fit(self, X, y):
        X, y = validate_data(self, X, y, y_numeric=True)
        super().fit(ids(X), np.clip(np.round(y), 1, 5))
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        check_is_fitted(self)
        return super().predict(ids(validate_data(self, X, reset=False)))


def ids(X):
    whole = np.abs(np.round(X[:, [0, -1]] * [1, 3])).astype(int)
    return whole % [7, 5]


def of_numbers():
    return OfNumbers(
        JOINT,
        **RANGE,
        epsilon=3,
        seed=0,
        catalogue_users=np.arange(7),
        catalogue_items=np.arange(5),
        settings=SMALL | {"duplicates": "mean"},
    )


def checks():
    for place, (_, check) in enumerate(estimator_checks_generator(of_numbers())):
        name = check.func.__name__
        if name not in NOT_APPLICABLE:
            yield pytest.param(check, id=f"{place} {name}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("check", list(checks()))
def test_scikit_learns_checks(check):
    check(of_numbers())


def pairs():
    users = pandas.Categorical([f"u{u}" for u in cases.PAIRS // 7])
    return pandas.DataFrame({"who": users, "what": cases.PAIRS % 7})


def test_it_is_dpmf_jax_fit():
    estimator = PrivateRecommender(JOINT, **RANGE, epsilon=3, seed=2, settings=SMALL)
    assert estimator.fit(pairs(), cases.VALUES) is estimator
    data = (np.asarray(pairs()["who"]), pairs()["what"].to_numpy(), cases.VALUES)
    options = {"test_fraction": 0, "controls": "none", "epsilon": 3, "seed": 2}
    model = dpmf_jax.fit(data, JOINT, **RANGE, **options, **SMALL)
    np.testing.assert_array_equal(estimator.predict(pairs()), model.predict(*data[:2]))
    assert estimator.guarantee_ == model.guarantee
    rows = np.array(pairs().to_numpy().tolist(), object)
    np.testing.assert_array_equal(estimator.predict(rows), model.predict(*data[:2]))


def test_folds_are_scored_over_a_declared_catalogue():
    estimator = PrivateRecommender(
        JOINT,
        **RANGE,
        epsilon=3,
        seed=0,
        catalogue_users=[f"u{u}" for u in range(20)],
        catalogue_items=range(7),
        settings=SMALL,
    )
    asked = {"cv": 3, "scoring": "neg_root_mean_squared_error"}
    scores = cross_val_score(estimator, pairs(), cases.VALUES, **asked)
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()
    search = GridSearchCV(estimator, {"epsilon": [0.1, 50.0]}, **asked)
    search.fit(pairs(), cases.VALUES)
    assert search.best_params_["epsilon"] == 50.0


@pytest.mark.parametrize(
    ("X", "error", "words"),
    [
        (np.ones((90, 3)), UsageError, r"X has the shape \(90, 3\)"),
        (np.ones(90), UsageError, r"X has the shape \(90,\)"),
        (np.ones((90, 2)), DataError, "only one user"),
    ],
)
def test_what_is_no_pairs_is_refused(X, error, words):
    with pytest.raises(error, match=words):
        PrivateRecommender(JOINT, **RANGE, epsilon=3, seed=0).fit(X, cases.VALUES)
