"""The run loop: chunks, Ctrl-C and resume give the same bytes; the budget is never reset; the key
stays secret.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

import dpmf_jax
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.noise import keys
from dpmf_jax.training.fit import Diverged, Interrupted
from tests.cases.training import (
    CONFIG,
    RATINGS,
    STEPS,
    contents,
    fit,
    from_user_100,
    same_model,
    stop_after,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.seconds
@pytest.mark.parametrize("chunk_steps", [1, 3, STEPS, 100])
def test_chunks_do_not_change_the_bytes(chunk_steps):
    assert same_model(fit(chunk_steps=chunk_steps), fit())


@pytest.mark.seconds
def test_a_resumed_run_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    steps = []
    fit(out=tmp_path, resume=True, report=lambda progress: steps.append(progress.step))
    assert steps == [6, 7]


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_an_interrupted_experiment_resumes_to_the_same_bytes(tmp_path, stop):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    fit(out=whole)
    with pytest.raises(Interrupted) as caught:
        fit(out=parts, report=stop_after(stop))
    assert caught.value.step == stop
    assert caught.value.folder == parts
    fit(out=parts, resume=True)
    expected, found = contents(whole), contents(parts)
    assert expected.keys() == found.keys()
    timed = "private/curator.json"  # holds seconds_per_step
    assert {n: b for n, b in expected.items() if n != timed} == {
        n: b for n, b in found.items() if n != timed
    }


def test_ctrl_c_while_the_controls_are_fitted_loses_no_step(tmp_path, monkeypatch):
    from dpmf_jax.training import controls

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(controls, "controls", interrupt)
        with pytest.raises(Interrupted) as caught:
            fit(out=tmp_path, controls=("global_mean",))
    assert caught.value.step == STEPS
    steps = []
    assert same_model(
        fit(out=tmp_path, resume=True, report=lambda progress: steps.append(progress.step)), fit()
    )
    assert steps == []


@pytest.mark.seconds
def test_a_resumed_release_pays_for_every_step_once(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path / "run", seed=None, report=stop_after(4))
    model = fit(out=tmp_path / "run", seed=None, resume=True)
    assert model.guarantee == gaussian.mechanism(CONFIG).guarantee(STEPS)
    lines = (tmp_path / "run" / "private" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))


def test_the_key_of_a_release_is_never_on_disk(tmp_path, monkeypatch):
    secret = bytes(range(201, 233))
    monkeypatch.setattr(os, "urandom", lambda n: secret[:n])
    with pytest.raises(Interrupted):
        fit(out=tmp_path, seed=None, report=stop_after(4))
    during = contents(tmp_path)
    fit(out=tmp_path, seed=None, resume=True)
    derived = jax.random.split(keys.from_operating_system())
    spellings = [
        np.asarray(jax.random.key_data(key)).tobytes()
        for key in (keys.from_operating_system(), *derived)
    ]
    spellings += [part[::-1] for part in spellings] + [
        part[i : i + 4] for part in spellings[:1] for i in range(0, 32, 4)
    ]
    spellings += [
        str(int(word)).encode() for part in spellings[:3] for word in np.frombuffer(part, np.uint32)
    ]
    for name, content in [*during.items(), *contents(tmp_path).items()]:
        assert not any(spelling in content for spelling in spellings), name


def test_two_releases_differ_and_two_experiments_do_not():
    assert not same_model(fit(seed=None), fit(seed=None))
    assert same_model(fit(), fit())
    assert not same_model(fit(), fit(seed=2**32))  # the seed's upper bits count


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"mechanism": gaussian.mechanism(dataclasses.replace(CONFIG, noise_multiplier=19.0))},
            "guarantee",
        ),
        (
            {"mechanism": gaussian.mechanism(dataclasses.replace(CONFIG, learning_rate=0.02))},
            "mechanism",
        ),
        ({"mechanism": gaussian.joint_noise(CONFIG)}, "guarantee"),
        ({"num_steps": STEPS + 1}, "guarantee"),
        ({"seed": 1}, "seed"),
        ({"seed": None}, "guarantee"),
        ({"ratings": from_user_100(1)}, "ratings"),
        ({"settings": {"rank": 4}}, "settings"),
    ],
)
def test_resume_refuses_what_was_changed(tmp_path, change, named):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    before = contents(tmp_path)
    with pytest.raises(PrivacyError, match=named) as caught:
        fit(out=tmp_path, resume=True, **change)
    assert caught.value.exit_code == 4
    assert contents(tmp_path) == before


def test_a_checkpoint_cut_short_falls_back_to_the_one_before(tmp_path):
    whole = fit()
    with pytest.raises(Interrupted):
        fit(out=tmp_path, checkpoint_seconds=0, report=stop_after(6))
    newest = sorted((tmp_path / "private" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    assert same_model(fit(out=tmp_path, resume=True), whole)


def test_what_a_killed_write_left_behind_is_cleared_away(tmp_path):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(4))
    for folder in (tmp_path, tmp_path / "private", tmp_path / "private" / "checkpoints"):
        (folder / ".file.123.partial").write_bytes(b"half")
    fit(out=tmp_path, resume=True)
    assert not [name for name in contents(tmp_path) if "partial" in name or "checkpoint" in name]


def test_a_lost_state_is_not_released_a_second_time(tmp_path):
    """Power fails after the release is written and before model.json: the state and metrics may be
    gone.
    """
    fit(out=tmp_path / "first", seed=None)
    with pytest.raises(Interrupted):
        fit(out=tmp_path / "run", seed=None, report=stop_after(2))
    release = (tmp_path / "first" / "release.safetensors").read_bytes()
    (tmp_path / "run" / "release.safetensors").write_bytes(release)
    with pytest.raises(PrivacyError, match="twice"):
        fit(out=tmp_path / "run", seed=None, resume=True)
    assert (tmp_path / "run" / "release.safetensors").read_bytes() == release


@pytest.mark.one_case
@pytest.mark.parametrize(
    "factory", [gaussian.mechanism, gaussian.joint_noise, gaussian.public_items]
)
def test_noise_for_a_narrower_range_than_the_ratings_is_refused(factory, tmp_path):
    wide = Ratings.from_columns(
        RATINGS.users[RATINGS.user], RATINGS.item, RATINGS.value, rating_range=(0, 100)
    )
    with pytest.raises(PrivacyError, match="may change by 100"):
        fit(factory(CONFIG), wide, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fit(factory(dataclasses.replace(CONFIG, rating_range=(0, 100))), wide)


def test_a_run_never_overwrites(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        fit(out=tmp_path)
    assert contents(tmp_path) == {"mine.txt": b"precious"}
    fit(out=tmp_path / "new")
    with pytest.raises(UsageError, match="complete"):
        fit(out=tmp_path / "new", resume=True)


def test_an_out_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match="a file, not a folder"):
            fit(out=out)


def test_nothing_is_written_where_the_settings_are_wrong(tmp_path):
    with pytest.raises(UsageError):
        fit(out=tmp_path / "run", num_steps=0)
    assert not (tmp_path / "run").exists()


def test_divergence_is_an_error_with_its_step_and_a_remedy(tmp_path):
    wild = gaussian.mechanism(dataclasses.replace(CONFIG, learning_rate=1e6))
    with pytest.raises(Diverged, match=r"diverged at step \d+") as caught:
        fit(wild, num_steps=60, out=tmp_path)
    assert isinstance(caught.value, FloatingPointError)
    assert "learning_rate" in caught.value.fix
    assert not (tmp_path / "model.json").exists()


def test_a_model_of_means_alone_predicts_them(tmp_path):
    means = noisy_means.mechanism(noisy_means.Config(rating_range=(1, 5), noise_multiplier=2.0))
    model = fit(means, num_steps=1, test=RATINGS, out=tmp_path / "model")
    predicted = dpmf_jax.load_model(tmp_path / "model").predict(
        model.users[:7], model.items[:7], clip=False
    )
    np.testing.assert_array_equal(predicted, model.release.center[:7])
    errors = RATINGS.value - np.asarray(model.release.center)[RATINGS.item]
    assert model.metrics["rmse_train"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
    assert model.metrics["rmse_test"] is not None


def _without_center(init, key, data, previous):
    state = init(key, data, previous)
    return state._replace(private=state.private._replace(center=None))


def test_a_state_that_predicts_nothing_is_refused_before_anything_is_done(tmp_path):
    sound = gaussian.mechanism(CONFIG)
    with pytest.raises(UsageError, match="no center"):
        fit(sound._replace(init=Partial(_without_center, sound.init)), out=tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.seconds
def test_patience_stops_at_the_step_that_the_rule_names_and_is_not_private():
    noisy = gaussian.mechanism(dataclasses.replace(CONFIG, learning_rate=0.02))
    rmse = []
    fit(noisy, num_steps=40, chunk_steps=1, report=lambda progress: rmse.append(progress.rmse))
    best = 0
    for step, value in enumerate(rmse):  # rmse[t]: after t updates
        best = step if value < rmse[best] else best
        if step - best >= 3:
            break
    else:
        pytest.fail("this run never stops; the test needs one that does")
    for chunk_steps in (1, 4, 40):
        stopped = fit(noisy, num_steps=40, patience=3, chunk_steps=chunk_steps)
        assert stopped.metrics["steps"] == stopped.guarantee.steps == step
        assert stopped.guarantee.status == "claimed"
        assert "not private" in stopped.guarantee.statement
        assert same_model(stopped, fit(noisy, num_steps=step))


@pytest.mark.seconds
def test_early_stopping_takes_the_proof_from_a_sound_mechanism():
    sound = gaussian.joint_noise(CONFIG)
    assert fit(sound).guarantee.status == "proved"
    assert fit(sound, patience=1000).guarantee.status == "claimed"


def test_the_statement_of_an_experiment_says_so_and_of_a_release_does_not():
    assert fit().guarantee.statement.startswith("EXPERIMENT: seeded, do not release")
    assert "EXPERIMENT" not in fit(seed=None).guarantee.statement


def test_a_non_private_run_releases_nothing(tmp_path):
    control = gaussian.non_private(dataclasses.replace(CONFIG, noise_multiplier=None))
    model = fit(control, out=tmp_path)
    assert model.guarantee.status == "none"
    assert all(part is None for part in model.release)


KILLED = """
import sys
from pathlib import Path
from tests.cases.training import CONFIG, RATINGS
import dpmf_jax
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
out = Path({out!r})
seed = None if {release!r} else 0
dpmf_jax.fit(RATINGS, gaussian.mechanism(CONFIG), num_steps=30_000, seed=seed, chunk_steps=10,
    checkpoint_seconds=0,
             out=out, resume=(out / "private" / "run.json").exists())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("release", "kills"), [(False, 4), (True, 3)])
def test_kill_at_random_moments_and_resume(tmp_path, release, kills, optimized):
    out = tmp_path / "run"
    program = KILLED.format(out=str(out), release=release)
    random = np.random.default_rng(int(release))

    def newest() -> str:
        found = sorted((out / "private" / "checkpoints").glob("step-*.safetensors"))
        return found[-1].name if found else ""

    steps_seen = [""]
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", program])
        deadline = time.monotonic() + 60
        # until it has gone on from where the last one was killed, and then a little
        while newest() == steps_seen[-1] and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(float(random.uniform(0, 0.2)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps_seen.append(newest())
    assert steps_seen == sorted(steps_seen)  # no step is lost or counted twice
    assert not (out / "model.json").exists(), "the run was over before it could be killed"
    subprocess.run([sys.executable, "-c", program], check=True)
    model = dpmf_jax.load_model(out)
    assert model.guarantee.steps == 30_000
    assert model.guarantee.rho == gaussian.mechanism(CONFIG).guarantee(30_000).rho
    lines = (out / "private" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(30_000))
    if not release:
        assert same_model(model, fit(num_steps=30_000, chunk_steps=100))
