"""A round that the server has seen is answered once: a release whose state after it is lost does
not go on.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import accounting
import dpmf_jax
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.local import laplace as local_laplace
from dpmf_jax.training.fit import Interrupted
from tests.cases import local as local_cases
from tests.cases.mechanisms import phases
from tests.cases.training import CONFIG, RATINGS, STEPS, contents, stop_after

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROUNDS = 8


def fit(**options):
    made = local_cases.gd(num_rounds=ROUNDS)
    told = {"num_steps": ROUNDS, "seed": None, "chunk_steps": 2} | options
    return dpmf_jax.fit(local_cases.RATINGS, made, **told)


def lose_power(step: int):
    """Ends the run as no `except KeyboardInterrupt` sees it."""

    def report(progress):
        if progress.step >= step:
            raise RuntimeError("power failure")

    return report


def lose_a_chunk(folder: Path, **options) -> None:
    """Rounds 1 to 4 are kept; rounds 5 and 6 are answered, and the state after them is lost."""
    with pytest.raises(RuntimeError, match="power"):
        fit(out=folder, checkpoint_seconds=0, report=lose_power(6), **options)
    newest = sorted((folder / "private" / "checkpoints").iterdir())[-1]
    assert newest.name == "step-00000006.safetensors"
    newest.unlink()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.cases import local as local_cases
import dpmf_jax
from dpmf_jax.training import fit as fitting
real = fitting._finite_rmse
def killed(info, done):
    found = real(info, done)
    if done == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
fitting._finite_rmse = killed
dpmf_jax.fit(local_cases.RATINGS, local_cases.gd(num_rounds=8), num_steps=8, seed={seed!r},
    chunk_steps=2,
             checkpoint_seconds=0, out=Path({out!r}))
"""


@pytest.mark.seconds
@pytest.mark.parametrize("seed", [None, 0])
def test_a_killed_local_release_answers_no_round_twice_and_an_experiment_repeats_itself(
    tmp_path, seed
):
    out = tmp_path / "run"
    program = KILLED.format(out=str(out), seed=seed)
    assert (
        subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    )
    before = contents(out)
    assert "private/checkpoints/step-00000004.safetensors" in before
    if seed is not None:
        found, whole = (
            fit(seed=seed, **more).factors for more in ({"out": out, "resume": True}, {})
        )
        for part, expected in zip(
            found, whole, strict=True
        ):  # the other process compiled with other flags
            np.testing.assert_allclose(part, expected, rtol=1e-4)
        return
    with pytest.raises(PrivacyError, match="rounds 5 to 6") as caught:
        fit(out=out, resume=True)
    assert "a second time" in caught.value.what
    assert "0.7500" in caught.value.fix  # of 6 of 8 rounds, at ε = 1 in all
    assert contents(out) == before


@pytest.mark.seconds
def test_lost_rounds_before_the_first_checkpoint_count_too(tmp_path):
    lose_a_chunk(tmp_path)
    for checkpoint in (tmp_path / "private" / "checkpoints").iterdir():
        checkpoint.unlink()
    with pytest.raises(PrivacyError, match="rounds 1 to 6"):
        fit(out=tmp_path, resume=True)


@pytest.mark.parametrize("stop", [2, 6])
def test_ctrl_c_between_rounds_loses_none_and_the_release_goes_on(tmp_path, stop):
    with pytest.raises(Interrupted):
        fit(out=tmp_path, report=stop_after(stop))
    steps = []
    model = fit(out=tmp_path, resume=True, report=lambda progress: steps.append(progress.step))
    assert steps == list(range(stop + 2, ROUNDS + 1, 2))
    assert model.guarantee.epsilon == 1.0


def test_ctrl_c_in_the_middle_of_rounds_waits_until_they_are_kept(tmp_path, monkeypatch):
    from dpmf_jax.training import fit as fitting

    real, chunks = fitting.train, iter(range(3))

    def interrupted(*arguments, **options):
        found = real(*arguments, **options)
        if next(chunks) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "train", interrupted)
        with pytest.raises(Interrupted) as caught:
            fit(out=tmp_path)
    assert caught.value.step == 4
    steps = []
    fit(out=tmp_path, resume=True, report=lambda progress: steps.append(progress.step))
    assert steps == [6, 8]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait(tmp_path, monkeypatch):
    from dpmf_jax.training import fit as fitting

    def interrupted(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second one waits")

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "train", interrupted)
        with pytest.raises(Interrupted) as caught:
            fit(out=tmp_path)
    assert caught.value.step == 0


@pytest.mark.seconds
def test_what_a_curator_loses_nobody_saw(tmp_path):
    """Its lost steps stay inside: it goes on, and pays for every step once."""
    options = {"num_steps": STEPS, "seed": None, "chunk_steps": 2, "out": tmp_path}
    with pytest.raises(RuntimeError, match="power"):
        dpmf_jax.fit(
            RATINGS,
            gaussian.joint_noise(CONFIG),
            report=lose_power(4),
            checkpoint_seconds=1e9,
            **options,
        )
    model = dpmf_jax.fit(RATINGS, gaussian.joint_noise(CONFIG), resume=True, **options)
    assert model.guarantee == gaussian.joint_noise(CONFIG).guarantee(STEPS)


def test_whole_messages_of_laplace_noise_are_seen_as_well(tmp_path):
    config = local_laplace.Config(
        epsilon=1.0, num_rounds=4, num_items=local_cases.ITEMS, rank=2, center=3.0
    )
    options = {"num_steps": 4, "seed": None, "chunk_steps": 1, "out": tmp_path}
    with pytest.raises(RuntimeError, match="power"):
        dpmf_jax.fit(
            local_cases.RATINGS, local_laplace.mechanism(config), report=lose_power(2), **options
        )
    for checkpoint in (tmp_path / "private" / "checkpoints").iterdir():
        checkpoint.unlink()
    with pytest.raises(PrivacyError, match="rounds 1 to 2"):
        dpmf_jax.fit(local_cases.RATINGS, local_laplace.mechanism(config), resume=True, **options)


def test_no_round_of_a_seen_release_is_answered_and_then_thrown_away_by_patience(tmp_path):
    with pytest.raises(PrivacyError, match="patience"):
        fit(out=tmp_path / "run", patience=2)
    assert not (tmp_path / "run").exists()
    fit(patience=2, seed=0)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in table()),
        ("federated", {"dynamic": True}),
        ("local", {"projection": 5}),
    ],
)
def test_every_mechanism_says_whether_its_rounds_are_seen(name, more):
    """By the words of its trust model: what a curator holds is not seen, what a server or a
    recommender gets is.
    """
    priced = accounting.compose(*(phase.guarantee(1) for phase, _ in phases(name, **more)[0]))
    if priced.status == "none":
        assert not priced.rounds_are_seen
        return
    seen = "server" in priced.trust_model or "untrusted" in priced.trust_model
    assert seen != ("curator" in priced.trust_model)
    assert priced.rounds_are_seen == seen
    assert accounting.Guarantee.from_dict(priced.to_dict()).rounds_are_seen == seen
    assert seen or name not in ("local", "federated", "federated-user", "federated-statistics")


def test_one_phase_that_is_seen_makes_the_whole_seen():
    local = local_cases.gd(num_rounds=2).guarantee(2)
    assert accounting.compose(local, local).rounds_are_seen
