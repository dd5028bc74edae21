"""Paper 002's runs are what the mechanisms do; searches look at the validation set alone."""

import dataclasses
import json
import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from audits.release import kl
from dpmf_jax import protocol
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.mechanisms.sketch import published as sketch
from dpmf_jax.noise import keys
from experiments.reproduce.paper002 import runs, table
from experiments.reproduce.paper002.table import Line
from tests.cases import CHECKOUT
from tests.cases import reproduce as cases
from tests.cases.reproduce import SEVERAL, SKETCHED

pytestmark = pytest.mark.usefixtures("quick_compilation", "small")


REGULAR = SKETCHED._replace(storage="regular")


def test_ratings_are_in_three_parts_of_which_two_lose_their_rare_rows(data):
    whole = data.ratings
    assert len(data.test) == round(0.1 * len(whole))
    assert len(data.train) == len(whole) - len(data.test) - round(len(data.test))
    pairs = [
        set(zip(part.user, part.item, strict=True)) for part in (data.train, data.valid, data.test)
    ]
    assert (
        sum(map(len, pairs)) == len(set.union(*pairs)) < len(whole)
    )  # distinct, and rare ones are gone
    per_user = np.bincount(data.train.user, minlength=whole.num_users)
    per_item = np.bincount(data.train.item, minlength=whole.num_items)
    assert min(per_user[data.valid.user].min(), per_item[data.valid.item].min()) >= 4
    assert not data.rows["kl"].test.all()


def test_rows_that_are_compared(data):
    per_user = np.bincount(data.train.user, minlength=40)
    top = set(np.argsort(-per_user, kind="stable")[:8])
    kept = data.rows
    assert kept["kl"].train.all()
    assert not kept["kl_same"].train.all()
    assert np.array_equal(kept["kl"].test, kept["kl_same"].test)
    for name in ("kl", "kl_same"):
        for side, part in (("train", data.train), ("test", data.test)):
            mine, heaviest = (getattr(kept[one], side) for one in (name, f"{name}_top"))
            assert set(part.user[heaviest]) <= top
            assert np.array_equal(heaviest, mine & np.isin(part.user, list(top)))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("run", "made"),
    [
        (REGULAR._replace(threshold=0.5), online.regular),
        (SKETCHED._replace(threshold=0.5), sketch.mechanism),
        (SKETCHED._replace(storage="hashed"), sketch.mechanism),
    ],
)
def test_a_run_is_the_mechanism_and_its_errors_are_those_of_its_factors(data, tmp_path, run, made):
    found = runs.measure([run], data, tmp_path)[run]
    settings = online.Config(
        rank=3,
        learning_rate=0.1,
        decay=1.0,
        num_epochs=2,
        regularization=0.1,
        threshold=run.threshold,
        depth=1 if run.storage == "hashed" else 4,
    )
    mechanism = made(settings, data.schedule(0))
    init_key, train_key = jax.random.split(keys.from_seed(0))
    start = protocol.begin(mechanism, init_key, data.layout)
    end, info = protocol.train(mechanism, train_key, start, data.layout, 2)
    users, items, center = (np.asarray(part, np.float64) for part in protocol.factors(end))
    errors = {
        part: np.sum(users[rows.user] * items[rows.item], axis=1) + center[rows.item] - rows.value
        for part, rows in (("train", data.train), ("valid", data.valid), ("test", data.test))
    }
    kept = data.rows["kl_same"]
    root = {name: math.sqrt(np.mean(one**2)) for name, one in errors.items()}
    assert found.values["rmse_train"] == pytest.approx(root["train"], rel=1e-5)
    assert found.values["rmse_valid"] == pytest.approx(root["valid"], rel=1e-5)
    assert found.values["rmse"] == pytest.approx(
        math.sqrt(np.mean(errors["test"][kept.test] ** 2)), rel=1e-5
    )
    top = errors["test"][data.rows["kl_top"].test]
    assert found.values["rmse_top"] == pytest.approx(math.sqrt(np.mean(top**2)), rel=1e-5)
    for name, rows in data.rows.items():
        expected = kl.gaussian_kl(errors["train"][rows.train], errors["test"][rows.test])
        assert found.values[name] == pytest.approx(expected, rel=1e-3)
        low, high = found.intervals[name]
        assert low <= high
    assert found.values["skipped"] == pytest.approx(float(info.clipped_fraction[-1]))
    assert (found.values["skipped"] > 0) == (run.threshold is not None)
    assert 0 < found.seconds < 60


def test_runs_of_one_storage_rank_and_gain_share_a_program(data, tmp_path):
    runs.measure([SKETCHED], data, tmp_path)
    before = protocol.train._cache_size()
    others = [SKETCHED._replace(learning_rate=0.03), SKETCHED._replace(regularization=0.0)]
    others += [SKETCHED._replace(threshold=0.3), SKETCHED._replace(seed=1)]
    runs.measure(others, data, tmp_path)
    assert protocol.train._cache_size() == before


@pytest.mark.slow
def test_runs_side_by_side_on_two_devices_are_the_same(data, tmp_path):
    """In a process of its own: tests have one device."""
    code = """if True:
        import json, sys
        import jax
        jax.config.update("jax_num_cpu_devices", 2)
        from pathlib import Path
        from experiments.reproduce.paper002 import runs, table
        from tests.cases import reproduce as cases
        for name in ("RARE", "TOP_SHARE"):
            setattr(table, name, cases.SKETCH[name])
        two = runs.Data(cases.some("ml-1m"), num_devices=2)
        measured = runs.measure(cases.SEVERAL, two, Path(sys.argv[1]))
        print(json.dumps([measured[run].values for run in cases.SEVERAL]))
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = runs.measure(SEVERAL, data, tmp_path / "one")
    for run, values in zip(SEVERAL, json.loads(done.stdout), strict=True):
        assert values == pytest.approx(found[run].values, rel=1e-4)


@pytest.mark.seconds
def test_what_is_stored_is_not_trained_again_and_another_setting_is(data, tmp_path, monkeypatch):
    told = []
    first = runs.measure([REGULAR, SKETCHED], data, tmp_path, told.append)
    assert len(told) == 2
    assert all(path.parent.name == "private" for path in tmp_path.rglob("*.*"))
    assert runs.measure([SKETCHED, REGULAR], data, tmp_path, told.append) == first
    assert len(told) == 2
    for other in (
        SKETCHED._replace(threshold=3.0),
        SKETCHED._replace(epochs=1),
        SKETCHED._replace(storage="hashed"),
    ):
        runs.measure([other], data, tmp_path, told.append)
    assert len(told) == 5
    runs.measure([REGULAR], runs.Data(cases.some("ml-1m", seed=4)), tmp_path, told.append)
    assert len(told) == 6


def test_a_run_that_diverges_is_stored_as_that(data, tmp_path):
    run = REGULAR._replace(learning_rate=100.0)
    found = runs.measure([run], data, tmp_path)[run]
    assert {
        found.values[name] for name in ("rmse", "rmse_valid", "rmse_train", "kl", "kl_same_top")
    } == {math.inf}
    assert runs.measure([run], data, tmp_path)[run] == found


def test_nothing_is_promised(data):
    for run in (REGULAR, SKETCHED._replace(threshold=2.0)):
        promise = runs.guarantee(run, data)
        assert (promise.status, promise.epsilon) == ("none", math.inf)
    assert "not a privacy parameter" in " ".join(promise.statement.split())


def test_a_search_takes_the_lowest_validation_error_and_never_sees_the_test(data, tmp_path, store):
    line = Line("regular", 3, 1.0)
    found = runs.search((line,), data, store, 2, 0, lambda text: None)[line]
    best = min(found.tried, key=lambda place: found.tried[place])
    assert (found.learning_rate, found.regularization) == best
    rates, strengths = ({place[side] for place in found.tried} for side in (0, 1))
    assert {table.place(-6), table.place(-4)} < rates
    assert {table.place(q) for q in (-8, -6, -4)} < strengths
    near = {round(math.log10(rate / found.learning_rate), 2) for rate in rates}
    assert near & {0.25, -0.25}  # the smaller step
    other = runs.Data(data.ratings)
    other.test = dataclasses.replace(other.test, value=6 - other.test.value)
    again = runs.search((line,), other, tmp_path, 2, 0, lambda text: None)[line]
    assert again == found
    other = runs.Data(data.ratings)
    other.valid = dataclasses.replace(other.valid, value=6 - other.valid.value)
    assert (
        runs.search((line,), other, tmp_path / "o", 2, 0, lambda text: None)[line].tried
        != found.tried
    )


def test_the_grids_are_logarithmic():
    assert [table.place(q) for q in (-12, -10, -8, -6, 0, 4)] == [
        0.001,
        0.00316,
        0.01,
        0.0316,
        1.0,
        10.0,
    ]
