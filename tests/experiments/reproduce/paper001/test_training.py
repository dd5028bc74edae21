"""The runs behind the figures: trained once, shared, equal to `dpmf fit`, and alive after any kind
of end.
"""

import dataclasses
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from dpmf_jax.data import splits
from dpmf_jax.errors import UsageError
from dpmf_jax.training import checkpoint, sweep
from dpmf_jax.training import fit as fitting
from experiments.reproduce.paper001 import runs as store
from experiments.reproduce.paper001 import stopping
from experiments.reproduce.paper001.training import train_all
from tests.cases import CHECKOUT
from tests.cases import reproduce as cases
from tests.cases.reproduce import small_runs

pytestmark = pytest.mark.usefixtures("quick_compilation")


def losses(curves):
    return {run: curve.loss for run, curve in curves.items()}


@pytest.mark.seconds
def test_a_curve_is_that_of_fit(tiny, tmp_path):
    runs = small_runs(tiny)
    curves = train_all(runs, tiny, tmp_path, chunk_steps=10)
    for run in runs:
        seen = []
        fitting.fit(
            tiny,
            run.mechanism,
            num_steps=run.num_steps,
            seed=run.seed,
            chunk_steps=10,
            report=lambda now, seen=seen: seen.append(now.rmse),
        )
        np.testing.assert_array_equal(
            curves[run].rmse[[9, 19, 22]], seen
        )  # fit tells the last of each chunk


@pytest.mark.seconds
def test_chunks_do_not_change_a_curve_and_runs_differ(tiny, tmp_path):
    runs = small_runs(tiny)
    one = train_all(runs, tiny, tmp_path / "one", chunk_steps=7)
    other = train_all(runs, tiny, tmp_path / "other", chunk_steps=50)
    assert losses(one) == losses(other)
    assert len({curve.loss for curve in one.values()}) == len(runs)
    assert all(len(one[run].loss) == run.num_steps for run in runs)
    assert all(curve.test == {} and curve.test_rmse is None for curve in one.values())


@pytest.mark.seconds
def test_runs_of_one_shape_share_one_program(tiny, tmp_path):
    private = small_runs(tiny, series=("0.15", "0.50", "0.90"), rank=4)
    slow = small_runs(tiny, series=("0.50",), seeds=(5,), rank=4, steps=31)
    slow = [
        run._replace(config=dataclasses.replace(run.config, learning_rate=1e-3, tau=9.0))
        for run in slow
    ]
    sweep.train_many.clear_cache()
    train_all([*private, *slow], tiny, tmp_path)
    assert sweep.train_many._cache_size() == 1
    train_all(small_runs(tiny, rank=3), tiny, tmp_path)
    assert sweep.train_many._cache_size() == 3  # another rank, and without noise


@pytest.mark.seconds
def test_what_is_complete_is_not_trained_again(tiny, tmp_path):
    runs = small_runs(tiny)
    first = train_all(runs[:3], tiny, tmp_path)
    told = []
    second = train_all(runs, tiny, tmp_path, report=told.append)
    assert [second[run] for run in runs[:3]] == [first[run] for run in runs[:3]]
    assert {now.run for now in told} == {runs[3].name}
    assert (told[-1].done, told[-1].total) == (4 * 23, 4 * 23)
    assert told[-1].minutes_left == 0


def test_more_steps_go_on_from_the_last_state_and_fewer_are_a_part(tiny, tmp_path):
    (short,), (long,) = (
        small_runs(tiny, series=("0.15",), seeds=(0,), steps=steps) for steps in (23, 31)
    )
    assert short.name == long.name
    first = train_all([short], tiny, tmp_path, chunk_steps=6)
    told = []
    second = train_all([long, short], tiny, tmp_path, chunk_steps=6, report=told.append)
    assert [now.done for now in told] == [29, 31]
    assert second[short].loss == first[short].loss == second[long].loss[:23]
    assert train_all([long], tiny, tmp_path / "whole")[long].loss == second[long].loss
    assert len(list((tmp_path / "private").iterdir())) == 1


def test_a_figure_that_shares_a_run_does_not_train_it_twice(tiny, tmp_path):
    (one,) = small_runs(tiny, series=("0.15",), seeds=(0,))
    told = []
    train_all(
        [one, one._replace(series="again"), one._replace(num_steps=11)],
        tiny,
        tmp_path,
        report=told.append,
    )
    assert told[-1].done == 23


def test_a_rule_ends_a_run_whatever_the_chunks(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "LEAST_FALL", 1e-3)
    (run,) = small_runs(tiny, series=("non-private",), seeds=(0,), steps=5000, rule="small fall")
    ended = {}
    for chunk_steps in (7, 50):
        ended[chunk_steps] = train_all(
            [run], tiny, tmp_path / str(chunk_steps), chunk_steps=chunk_steps
        )[run]
    rmse = ended[7].rmse
    assert ended[7].loss == ended[50].loss
    assert 2 < len(rmse) < 5000
    fell = rmse[:-1] - rmse[1:]
    assert fell[-1] < 1e-3
    assert (fell[:-1] >= 1e-3).all()
    whole = train_all([run._replace(rule=None, num_steps=len(rmse) + 20)], tiny, tmp_path / "7")
    assert next(iter(whole.values())).loss[: len(rmse)] == ended[7].loss


def test_a_rule_does_not_shorten_who_else_needs_the_run(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "LEAST_FALL", 1.0)  # ends at step 1
    (run,) = small_runs(tiny, series=("non-private",), seeds=(0,), steps=40)
    ruled = run._replace(num_steps=1000, rule="small fall")
    curves = train_all([run, ruled], tiny, tmp_path, chunk_steps=6)
    assert (len(curves[run].loss), len(curves[ruled].loss)) == (40, 2)
    stored = json.loads(next((tmp_path / "private").rglob("run.json")).read_text())
    assert len(stored["loss"]) == 42  # the end of the chunk in which all was there


def test_a_rule_that_never_ends_a_run_gives_all_its_steps(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "LEAST_FALL", -1.0)
    (run,) = small_runs(tiny, series=("non-private",), seeds=(0,), steps=40, rule="small fall")
    assert len(train_all([run], tiny, tmp_path)[run].loss) == 40


@pytest.mark.seconds
def test_held_out_errors_are_those_of_fit(tiny, tmp_path):
    short, long = (
        run
        for steps in (9, 14)
        for run in small_runs(tiny, series=("0.90",), seeds=(2,), steps=steps, part="held-out")
    )
    curves = train_all([long, short], tiny, tmp_path, chunk_steps=6)
    train, test = splits.random(tiny, fraction=store.HELD_OUT, seed=store.SPLIT_SEED)
    for run in (short, long):
        model = fitting.fit(
            train, run.mechanism, num_steps=run.num_steps, seed=2, test=test, chunk_steps=5
        )
        assert curves[run].test_rmse == pytest.approx(model.metrics["rmse_test"], rel=1e-6)
        assert len(curves[run].loss) == run.num_steps
    assert curves[short].test_rmse != curves[long].test_rmse
    told = []
    again = train_all([short, long], tiny, tmp_path, report=told.append)
    assert again == curves
    assert not told


def test_a_test_error_that_was_passed_by_is_trained_again(tiny, tmp_path):
    short, long = (
        run
        for steps in (9, 14)
        for run in small_runs(tiny, series=("0.90",), seeds=(2,), steps=steps, part="held-out")
    )
    both = train_all([short, long], tiny, tmp_path / "both")
    train_all([long], tiny, tmp_path / "one")
    assert train_all([short], tiny, tmp_path / "one")[short].test_rmse == both[short].test_rmse
    assert train_all([long], tiny, tmp_path / "one")[long].test_rmse == both[long].test_rmse


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6, 7])
def test_ctrl_c_loses_nothing(tiny, tmp_path, after):
    runs = small_runs(tiny, seeds=(0,))
    whole = train_all(runs, tiny, tmp_path / "whole", chunk_steps=6)
    told = []

    def interrupt(now):
        told.append(now.done)
        if len(told) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all(runs, tiny, tmp_path / "cut", chunk_steps=6, report=interrupt)
    done = []
    cut = train_all(
        runs, tiny, tmp_path / "cut", chunk_steps=6, report=lambda now: done.append(now.done)
    )
    assert losses(cut) == losses(whole)
    assert all(steps > told[-1] for steps in done)  # nothing that was done is done again
    assert {len(list(path.iterdir())) for path in tmp_path.glob("cut/private/*/checkpoints")} == {1}


KILLED = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 2)
from dpmf_jax.training import sweep
from experiments.reproduce.paper001.training import train_all
from tests.cases import reproduce as cases

out, after = Path(sys.argv[1]), int(sys.argv[2])
ratings = cases.generated()
runs = cases.small_runs(ratings, series=("0.15", "0.90", "non-private"))
told = []

def report(now):
    told.append(now)
    if len(told) == after:
        os.kill(os.getpid(), signal.SIGKILL)

train_all(runs, ratings, out, num_devices=2, chunk_steps=6, checkpoint_seconds=0.0, report=report)
print("compiled", sweep.train_many._cache_size())
"""


@pytest.mark.slow
def test_kill_9_and_one_compilation_on_two_devices(tmp_path):
    """Killed in the middle of two series and resumed: the same bytes. The private series share one
    program.
    """

    def start(folder: str, after: int) -> subprocess.CompletedProcess:
        words = [sys.executable, "-c", KILLED, str(tmp_path / folder), str(after)]
        return subprocess.run(words, capture_output=True, text=True, cwd=CHECKOUT)

    whole = start("whole", 0)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.split() == ["compiled", "2"]
    for after in (3, 9, 2):
        assert start("cut", after).returncode == -signal.SIGKILL
    last = start("cut", 0)
    assert last.returncode == 0, last.stderr
    kept = [
        {
            path.parent.name: json.loads(path.read_text())["loss"]
            for path in (tmp_path / name).rglob("run.json")
        }
        for name in ("whole", "cut")
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 6


@pytest.mark.parametrize("lost", ["the newest", "all"])
def test_a_checkpoint_that_is_lost_costs_time_only(tiny, tmp_path, lost):
    runs = small_runs(tiny, series=("0.15",), seeds=(0,))
    whole = train_all(runs, tiny, tmp_path / "whole", chunk_steps=6)

    def interrupt(now):
        if now.done == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all(
            runs, tiny, tmp_path / "cut", chunk_steps=6, checkpoint_seconds=0.0, report=interrupt
        )
    kept = sorted((tmp_path / "cut" / "private" / runs[0].name / "checkpoints").iterdir())
    assert len(kept) == 2
    for path in kept[-1:] if lost == "the newest" else kept:
        path.unlink()
    cut = train_all(runs, tiny, tmp_path / "cut", chunk_steps=6)
    assert cut[runs[0]].loss == whole[runs[0]].loss


def test_a_last_state_that_is_lost_costs_time_only(tiny, tmp_path):
    (short,), (long,) = (
        small_runs(tiny, series=("0.15",), seeds=(0,), steps=steps) for steps in (23, 31)
    )
    train_all([short], tiny, tmp_path)
    checkpoint.clear(tmp_path / "private" / short.name)
    assert (
        train_all([long], tiny, tmp_path)[long].loss
        == train_all([long], tiny, tmp_path / "whole")[long].loss
    )


def test_a_run_that_diverges_stops_with_its_step_and_stores_nothing(tiny, tmp_path):
    (run,) = small_runs(tiny, series=("0.15",), seeds=(0,))
    wild = run._replace(config=dataclasses.replace(run.config, learning_rate=1e6))
    with pytest.raises(fitting.Diverged, match=r"diverged at step \d+"):
        train_all([wild], tiny, tmp_path)
    assert not list((tmp_path / "private").rglob("*.json"))


def test_other_ratings_or_settings_are_refused(tiny, tmp_path):
    (run,) = small_runs(tiny, series=("0.15",), seeds=(0,))
    train_all([run], tiny, tmp_path)
    with pytest.raises(UsageError, match="another ratings already"):
        train_all([run], cases.generated(seed=4), tmp_path)
    path = tmp_path / "private" / run.name / "run.json"
    stored = json.loads(path.read_text())
    for name, other in (
        ("seed", 1),
        ("part", "x"),
        ("variant", "non-private"),
        ("config", stored["config"] | {"rank": 6}),
    ):
        path.write_text(json.dumps(stored | {name: other}))
        with pytest.raises(UsageError, match=f"another {name} already"):
            train_all([run], tiny, tmp_path)


def test_states_and_losses_are_the_owner_s_alone(tiny, tmp_path):
    def interrupt(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all(small_runs(tiny), tiny, tmp_path, chunk_steps=6, report=interrupt)
    train_all(small_runs(tiny, seeds=(7,)), tiny, tmp_path)
    found = [path for path in (tmp_path / "private").rglob("*") if path.is_file()]
    assert len(found) == 6
    assert {path.stat().st_mode & 0o077 for path in [*found, tmp_path / "private"]} == {0}


def test_nothing_is_trained_where_nothing_is_asked_for(tiny, tmp_path):
    assert train_all([], tiny, tmp_path) == {}
