"""Errors on held-out ratings along a run: right, unseen by training, and alive after any end."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.data import splits
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.training import sweep
from experiments.reproduce.paper001 import runs as store
from experiments.reproduce.paper001 import training
from experiments.reproduce.paper001.figures import NON_PRIVATE
from experiments.reproduce.paper001.training import train_all
from tests.cases import reproduce as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def every_five(monkeypatch):
    for module in (store, training):
        monkeypatch.setattr(module, "TEST_STEPS", 5)


def by_hand(run, ratings):
    """RMSE on what is held out after every step, by the protocol alone."""
    train, test = splits.random(ratings, fraction=store.HELD_OUT, seed=store.SPLIT_SEED)
    data = layout.make(train, num_devices=1)
    earlier, mechanism = run.phases
    init_key, train_key = jax.random.split(keys.from_seed(run.seed))
    state = protocol.begin(mechanism, init_key, data, earlier)
    found = {}
    for done in range(1, run.num_steps + 1):
        state, _ = protocol.train(mechanism, train_key, state, data, 1)
        found[done] = metrics.rmse(jax.device_get(protocol.factors(state)), test)
    return found


@pytest.mark.seconds
@pytest.mark.parametrize("chunk_steps", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_the_errors_along_a_run_are_those_of_a_model_trained_so_far(
    tiny, tmp_path, every_five, chunk_steps
):
    runs = cases.beside_runs(tiny)
    curves = train_all(runs, tiny, tmp_path, chunk_steps=chunk_steps)
    for run in runs:
        assert list(curves[run].test) == [5, 10, 13]
        expected = by_hand(run, tiny)
        for steps, error in curves[run].test.items():
            assert error == pytest.approx(expected[steps], rel=1e-5), (run.variant, steps)
        assert curves[run].test_rmse == curves[run].test[13]
        assert len(curves[run].loss) == 13


@pytest.mark.seconds
def test_what_is_held_out_is_never_seen(tiny, tmp_path, every_five):
    """The same training whatever the held-out values are; only the error on them is another."""
    _, test = splits.random(tiny, fraction=store.HELD_OUT, seed=store.SPLIT_SEED)
    pairs = set(zip(test.user.tolist(), test.item.tolist(), strict=True))
    held = np.array(
        [pair in pairs for pair in zip(tiny.user.tolist(), tiny.item.tolist(), strict=True)]
    )
    assert held.sum() == len(test) == round(0.2 * len(tiny))
    other = dataclasses.replace(
        tiny, value=np.where(held, 6 - tiny.value, tiny.value).astype(np.float32)
    )
    runs = cases.beside_runs(tiny)
    one, two = train_all(runs, tiny, tmp_path / "one"), train_all(runs, other, tmp_path / "two")
    for run in runs:
        assert one[run].loss == two[run].loss
        assert all(one[run].test[steps] != two[run].test[steps] for steps in one[run].test)


@pytest.mark.seconds
def test_variants_share_programs_whatever_their_noise_and_steps(tiny, tmp_path):
    series = ("0.15", "0.50", "0.90")
    runs = [
        run for steps in (13, 17) for run in cases.beside_runs(tiny, series=series, steps=steps)
    ]
    sweep.train_many.clear_cache()
    train_all(runs, tiny, tmp_path)
    assert sweep.train_many._cache_size() == len(cases.VARIANTS)


@pytest.mark.parametrize("after", [1, 2, 4, 5])
def test_ctrl_c_keeps_what_was_measured(tiny, tmp_path, every_five, after):
    runs = cases.beside_runs(tiny, ("published", "public-items"))
    whole = train_all(runs, tiny, tmp_path / "whole")
    told = []

    def interrupt(now):
        told.append(now.done)
        if len(told) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all(runs, tiny, tmp_path / "cut", report=interrupt)
    done = []
    cut = train_all(runs, tiny, tmp_path / "cut", report=lambda now: done.append(now.done))
    assert all(steps > told[-1] for steps in done)
    for run in runs:
        assert (cut[run].loss, dict(cut[run].test)) == (whole[run].loss, dict(whole[run].test))


def test_a_kill_between_a_chunk_and_its_measurement_costs_no_measurement(
    tiny, tmp_path, every_five, monkeypatch
):
    (run,) = cases.beside_runs(tiny, ("joint-noise",))
    whole = train_all([run], tiny, tmp_path / "whole")[run]

    def killed(state, test):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "_rmse", killed)
        with pytest.raises(KeyboardInterrupt):
            train_all([run], tiny, tmp_path / "cut")
    stored = json.loads((tmp_path / "cut" / "private" / run.name / "run.json").read_text())
    assert (len(stored["loss"]), stored["test_rmse"]) == (5, {})
    done = []
    cut = train_all([run], tiny, tmp_path / "cut", report=lambda now: done.append(now.done))[run]
    assert dict(cut.test) == dict(whole.test)
    assert done == [10, 13]  # nothing is trained again


@pytest.mark.parametrize("center", [3.0, "items"])
def test_errors_on_the_device_are_those_of_metrics_clipped(tiny, center):
    draw = np.random.default_rng(0).normal
    users, items = (
        draw(size=(size, 3)).astype(np.float32) for size in (tiny.num_users, tiny.num_items)
    )
    levels = (
        np.float32(center) if center != "items" else draw(3, 2, tiny.num_items).astype(np.float32)
    )
    state = protocol.State(protocol.Factors(users, items, levels), None, np.int32(1))
    expected = metrics.rmse(protocol.Factors(users, items, levels), tiny)
    assert training._rmse(state, tiny) == pytest.approx(expected, rel=1e-6)
    assert metrics.rmse(protocol.Factors(users, items, levels), tiny, clip=False) > 1.1 * expected


def test_more_steps_go_on_and_measure_on_the_grid(tiny, tmp_path, every_five):
    short, long = (cases.beside_runs(tiny, ("joint-noise",), steps=steps)[0] for steps in (8, 22))
    train_all([short], tiny, tmp_path / "cut")
    done = []
    cut = train_all([long], tiny, tmp_path / "cut", report=lambda now: done.append(now.done))[long]
    assert done == [10, 15, 20, 22]
    whole = train_all([short, long], tiny, tmp_path / "whole")
    assert list(cut.test) == [5, 10, 15, 20, 22]
    assert (cut.loss, dict(cut.test)) == (whole[long].loss, dict(whole[long].test))
    assert list(whole[short].test) == [5, 8]


def test_fewer_steps_than_measured_and_the_longer_run_again(tiny, tmp_path, every_five):
    short, long = (cases.beside_runs(tiny, ("published",), steps=steps)[0] for steps in (8, 22))
    both = train_all([short, long], tiny, tmp_path / "both")
    train_all([long], tiny, tmp_path / "one")
    assert dict(train_all([short], tiny, tmp_path / "one")[short].test) == dict(both[short].test)
    again = train_all([long], tiny, tmp_path / "one")[long]
    assert (again.loss, dict(again.test)) == (both[long].loss, dict(both[long].test))


def test_a_run_that_was_measured_at_its_end_alone_is_measured_along_the_way(
    tiny, tmp_path, every_five
):
    (run,) = cases.beside_runs(tiny, ("joint-noise",))
    first = train_all([run], tiny, tmp_path)[run]
    path = tmp_path / "private" / run.name / "run.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"test_rmse": {"13": stored["test_rmse"]["13"]}}))
    again = train_all([run], tiny, tmp_path)[run]
    assert (again.loss, dict(again.test)) == (first.loss, dict(first.test))


def test_no_rule_ends_a_run_that_is_measured(tiny, tmp_path):
    (run,) = cases.beside_runs(tiny, (NON_PRIVATE,))
    with pytest.raises(ValueError, match="a rule ends runs on all ratings only"):
        train_all([run._replace(rule="small fall")], tiny, tmp_path)


def test_seconds_are_those_of_the_steps_that_are_asked_for(tiny, tmp_path):
    (long,) = cases.small_runs(tiny, series=("0.15",), seeds=(0,), steps=40)
    whole = train_all([long], tiny, tmp_path)[long]
    part = train_all([long._replace(num_steps=10)], tiny, tmp_path)
    assert whole.seconds > 0
    assert next(iter(part.values())).seconds == pytest.approx(whole.seconds / 4)
