"""The run loop's edges: what is on disk after a crash, what a resume compares, what the steps so
far cost.
"""

import dataclasses
import json
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError
from dpmf_jax.kernels import descent
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.models import storage
from dpmf_jax.noise import keys
from dpmf_jax.training import fit as fitting
from dpmf_jax.training import measure
from dpmf_jax.training.fit import Diverged, Interrupted
from tests.cases.training import (
    CONFIG,
    RATINGS,
    STEPS,
    contents,
    fit,
    same_model,
    stop_after,
)


def test_a_checkpoint_cut_short_goes_on_from_the_one_before_and_leaves_no_gap(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, checkpoint_seconds=0, report=stop_after(6))
    newest = sorted((tmp_path / "private" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    steps = []
    fit(out=tmp_path, resume=True, report=lambda progress: steps.append(progress.step))
    assert steps == [6, 7]  # from step 4, not from the start
    lines = (tmp_path / "private" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))


def test_a_run_without_a_readable_checkpoint_says_that_it_starts_again(tmp_path, caplog):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, checkpoint_seconds=0, report=stop_after(6))
    for one in (tmp_path / "private" / "checkpoints").iterdir():
        one.write_bytes(one.read_bytes()[:100])
    assert same_model(fit(out=tmp_path, resume=True), fit())
    assert "has no checkpoint that can be read: it starts again" in caplog.text


def test_metrics_that_were_not_flushed_are_made_again(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    metrics = tmp_path / "private" / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:3]))
    assert same_model(fit(out=tmp_path, resume=True), fit())
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(
        range(STEPS)
    )


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    storage.write_bytes(path, b"old")

    def fail(*arguments):
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(OSError, match="no space"):
            storage.write_bytes(path, b"new")
    assert contents(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("factory", [gaussian.mechanism, gaussian.joint_noise])
def test_progress_tells_what_the_steps_so_far_cost(factory):
    mechanism, seen = factory(CONFIG), []
    model = fit(mechanism, report=lambda progress: seen.append((progress.step, progress.epsilon)))
    assert [step for step, _ in seen] == [2, 4, 6, 7]
    name = "closed_form" if model.guarantee.status == "claimed" else "exact"
    for step, epsilon in seen:
        assert epsilon == pytest.approx(mechanism.guarantee(step).accountants[name], rel=1e-6)


def test_what_an_interrupted_run_leaves_is_open_to_its_owner_alone(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    private = tmp_path / "private"
    paths = [private, *private.rglob("*")]
    assert any("checkpoints" in str(path.parent) for path in paths)
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_dir()} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_file()} == {0o600}


def test_a_release_key_has_256_bits_of_the_operating_system(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda n: bytes(range(n)))
    words = np.asarray(jax.random.key_data(keys.from_operating_system()))
    assert words.tobytes() == bytes(range(32))


def test_the_initial_factors_and_the_noise_have_keys_of_their_own(monkeypatch):
    used = []

    def watched(real):
        def call(mechanism, key, *arguments, **options):
            used.append(np.asarray(jax.random.key_data(key)).tobytes())
            return real(mechanism, key, *arguments, **options)

        return call

    for name in ("begin", "train"):
        monkeypatch.setattr(fitting, name, watched(getattr(fitting, name)))
    fit(chunk_steps=STEPS)
    assert len(used) == len(set(used)) == 2
    assert np.asarray(jax.random.key_data(keys.from_seed(0))).tobytes() not in used


@pytest.mark.parametrize("column", ["user", "item", "value"])
def test_resume_refuses_another_column_of_the_ratings(tmp_path, column):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    other = dataclasses.replace(RATINGS, **{column: getattr(RATINGS, column)[::-1].copy()})
    with pytest.raises(PrivacyError, match="ratings"):
        fit(out=tmp_path, ratings=other, resume=True)


@pytest.mark.parametrize("change", [{"patience": 5}, {"seed": 1}])
def test_resume_of_a_control_refuses_another_seed_or_patience(tmp_path, change):
    control = gaussian.non_private(dataclasses.replace(CONFIG, noise_multiplier=None))
    with pytest.raises(Interrupted):
        fit(control, out=tmp_path, report=stop_after(4))
    with pytest.raises(PrivacyError, match=next(iter(change))):
        fit(control, out=tmp_path, resume=True, **change)


def test_items_that_nobody_rated_get_the_overall_mean():
    ratings = Ratings.from_columns(
        [0, 1, 1],
        [0, 0, 1],
        [1, 2, 5],
        rating_range=(1, 5),
        name="t",
        users=np.arange(2),
        items=np.arange(3),
    )
    means, overall = descent.item_means(layout.make(ratings, kind="dense"))
    np.testing.assert_allclose(means, [1.5, 5, 8 / 3], rtol=1e-6)
    np.testing.assert_allclose(overall, 8 / 3, rtol=1e-6)


@pytest.mark.seconds
def test_bias_rows_start_small_with_a_bias_column_each(key):
    users, items = map(np.asarray, descent.bias_rows(key, 5, 4, 6))
    half = np.sqrt(0.5)
    np.testing.assert_allclose(users[:, :2], np.tile([0, half], (5, 1)), rtol=1e-6)
    np.testing.assert_allclose(items[:, :2], np.tile([half, 0], (4, 1)), rtol=1e-6)
    assert max(np.linalg.norm(r[:, 2:], axis=1).max() for r in (users, items)) <= 0.1 + 1e-6
    assert (users[:, 2:] != 0).all()
    assert (items[:, 2:] != 0).all()
    users, items = descent.bias_rows(key, 5, 4, 1)  # rank 1: user biases only
    assert not np.asarray(users).any()
    np.testing.assert_allclose(items, half, rtol=1e-6)


def test_a_centre_read_off_the_ratings_stands_among_the_assumptions():
    for center in ("item", "global"):
        told = (
            gaussian.mechanism(dataclasses.replace(CONFIG, center=center)).guarantee(3).assumptions
        )
        assert any(f"the {center} mean" in line for line in told)
    assert not any(
        "mean that centres" in line
        for line in (
            gaussian.mechanism(dataclasses.replace(CONFIG, center=3.0)).guarantee(3).assumptions
        )
    )


def test_what_a_user_pays_is_the_mechanisms():
    found = [
        make(CONFIG).guarantee(3).losses[0].user_rho
        for make in (gaussian.joint_noise, gaussian.public_items, gaussian.mechanism)
    ]
    assert found == [(0.5, 0.5), (1.0, 0.0), (1.0, 0.0)]


def test_divergence_in_the_last_step_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "_mean_squared_error", lambda *a: jnp.float32(np.inf))
    with pytest.raises(Diverged, match="last step"):
        fit(out=tmp_path)
    assert not (tmp_path / "model.json").exists()


def test_a_checkpoint_of_another_shape_is_passed_over(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    storage.write_arrays(
        tmp_path / "private/checkpoints/step-00000006.safetensors",
        {"other": np.zeros(3)},
        private=True,
    )
    assert same_model(fit(out=tmp_path, resume=True), fit())


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, [[2], [2, 4], [4, 6], [6, 7]]), (1e9, [[], [], [], []])]
)
def test_checkpoints_come_no_more_often_than_asked_and_two_are_kept(tmp_path, seconds, expected):
    seen = []
    folder = tmp_path / "private" / "checkpoints"
    fit(
        out=tmp_path,
        checkpoint_seconds=seconds,
        report=lambda progress: seen.append(sorted(int(p.stem[5:]) for p in folder.glob("step-*"))),
    )
    assert seen == expected


def test_resume_of_a_control_refuses_another_patience(tmp_path):
    control = gaussian.non_private(dataclasses.replace(CONFIG, noise_multiplier=None))
    with pytest.raises(Interrupted):
        fit(control, out=tmp_path, report=stop_after(4))
    with pytest.raises(PrivacyError, match="patience"):
        fit(control, out=tmp_path, resume=True, patience=5)


def test_presence_is_proved_for_a_declared_catalogue_and_says_so():
    config = dataclasses.replace(CONFIG, relation="rating presence", residual_clip=1.0)
    for make in (gaussian.joint_noise, gaussian.public_items):
        told = make(config).guarantee(3).assumptions
        assert any("declared" in line and "every user and item" in line for line in told)
        assert "who rated what is public" not in told
        assert "who rated what is public" in make(CONFIG).guarantee(3).assumptions


@pytest.mark.parametrize(
    ("rmse", "patience", "stop"),
    [
        ([3, 2, 2, 2], None, None),
        ([3, 2, 2, 2], 1, 2),
        ([3, 2, 2, 2], 2, 3),
        ([3, 2, 2, 2], 3, None),
        ([3, 2, 2.5, 1, 1.5], 2, None),  # a new minimum begins the count again
    ],
)
def test_a_run_stops_after_so_many_steps_without_a_new_minimum(rmse, patience, stop):
    assert fitting.stopping_step(rmse, patience) == stop
