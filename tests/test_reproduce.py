"""Reproductions: which points decide, the tolerance, exit 6, curves that survive kills, points that ship."""

import csv
import dataclasses
import io
import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from dpmf_jax import fitting, synthetic
from dpmf_jax.errors import UsageError
from experiments import cli, reproduce_command
from experiments.reproduce import comparison, figures, gaussian_curves, report
from experiments.reproduce.figures import Point

FIGURE = figures.FIGURES["001/fig1"]
SERIES = ("0.15", "0.20", "0.30", "0.50", "0.75", "0.90", "non-private")
SHIPPED = [*range(1, 13), *range(16, 19)]


def point(x: float, kind: str, y: float = 0.9, series: str = "0.15") -> Point:
    return Point(series, x, y, "rmse", kind, "iteration")


def rating_file(folder: Path) -> Path:
    """A folder of data sets in which ml-1m is a small file of the test's own, in the official layout."""
    ratings = synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=3)
    lines = [
        f"{user + 1}::{item + 1}::{round(value)}::0"
        for user, item, value in zip(ratings.user, ratings.item, ratings.value, strict=True)
    ]
    (folder / "ml-1m").mkdir(parents=True)
    (folder / "ml-1m" / "ratings.dat").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def tiny():
    return synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=3)


def small_runs(ratings, series=("0.15", "non-private"), seeds=(0, 1), steps=23):
    plotted = [point(steps - 1, "line_end", series=name) for name in series]
    return gaussian_curves.plan(plotted, series, seeds, ratings.rating_range)


# --- the points


@pytest.mark.parametrize("number", SHIPPED)
def test_points_ship_and_parse(number):
    found = figures.points(f"fig{number:02}.csv")
    assert len(found) > 5
    assert all(np.isfinite([p.x, p.y]).all() and p.y > 0 and p.x > -0.01 for p in found)
    assert {p.kind for p in found} <= {"marker", "line_start", "line_vertex", "line_end"}
    assert {p.axis for p in found} <= {"rmse", "overall_epsilon", "ms_per_iteration"}


def test_the_last_steps_of_figure_1_are_the_paper_s():
    runs = gaussian_curves.plan(figures.points("fig01.csv"), SERIES, (0, 1, 2), (1.0, 5.0))
    steps = {run.series: run.num_steps for run in runs}
    assert steps == dict(zip(SERIES, (791, 1127, 1265, 2109, 2240, 2489, 2491), strict=True))
    assert sum(run.num_steps for run in runs) == 37_536  # as FIGURES says
    assert len(runs) == 21


def test_the_steps_of_figure_1_have_the_price_of_figure_4():
    """Equation (9) at our J and σ gives the overall ε that the paper plots, to what can be read from its plot."""
    plotted = {p.series: p.y for p in figures.points("fig04.csv") if p.axis == "overall_epsilon"}
    for run in gaussian_curves.plan(figures.points("fig01.csv"), SERIES[:-1], (0,), (1.0, 5.0)):
        ours = run.mechanism.guarantee(run.num_steps).accountants["closed_form"]
        assert ours == pytest.approx(plotted[run.series], abs=0.005)


def test_series_are_found_however_they_are_spelled():
    plotted = figures.points("fig01.csv")
    assert figures.choose_series(plotted, None) == SERIES
    assert figures.choose_series(plotted, ("non-private", "0.5", ".15", "0.50")) == ("0.15", "0.50", "non-private")
    for wrong in ("0.4", "private", "nan", ""):
        with pytest.raises(UsageError, match="no series"):
            figures.choose_series(plotted, (wrong,))


# --- the comparison


def test_which_points_decide():
    points = [
        point(0.002, "line_start"),
        point(0.002, "marker"),
        point(99.4, "marker"),
        point(99.6, "marker"),
        point(100.005, "marker"),
        point(110.0, "line_vertex"),
        point(119.99, "line_end"),
        point(30.0, "line_end", series="0.20"),
    ]
    rows = comparison.compare(points, {"0.15": [np.full(121, 0.9)], "0.20": [np.full(31, 0.9)]})
    decide = [(row.series, row.step, row.kind) for row in rows if row.result != "informative"]
    assert decide == [
        ("0.15", 100, "marker"),
        ("0.15", 100, "marker"),
        ("0.15", 120, "line_end"),
        ("0.20", 30, "line_end"),
    ]
    assert all((row.tolerance is None) == (row.result == "informative") for row in rows)


def test_figure_1_is_decided_at_31_points():
    checked = [p for p in figures.points("fig01.csv") if comparison.is_checked(p)]
    assert len(checked) == 31
    assert {p.series for p in checked} == set(SERIES)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (0.905, "inside"),
        (0.895, "inside"),
        (0.9050001, "outside"),
        (0.8949999, "outside"),
        (float("nan"), "outside"),
        (float("inf"), "outside"),
    ],
)
def test_the_edge_of_the_tolerance(value, result):
    curve = np.full(201, 0.9)
    curve[200] = value
    (row,) = comparison.compare([point(200.0, "line_end")], {"0.15": [curve]})
    assert row.result == result
    assert comparison.verdict([row]) == result
    assert comparison.worst([row]) == row


def test_every_decimal_edge_counts_as_inside():
    """0.83893 + 0.005 - 0.83893 is above 0.005 in floating point for some decimals; all of them are inside."""
    for paper in np.round(np.arange(0.69, 0.91, 0.00001), 5):
        (row,) = comparison.compare([point(1.0, "line_end", paper)], {"0.15": [[0.0, float(paper) + 0.005]]})
        assert row.result == "inside"


def test_the_mean_over_seeds_is_compared():
    curves = {"0.15": [[0.0, 0.91], [0.0, 0.89], [0.0, 0.903]]}  # two of three are outside, their mean is not
    (row,) = comparison.compare([point(1.0, "line_end")], curves)
    assert row.value == pytest.approx(0.901)
    assert row.result == "inside"


def test_one_point_outside_is_outside_and_no_point_is_not_inside():
    rows = comparison.compare(
        [point(1.0, "line_end"), point(1.0, "line_end", series="0.20")],
        {"0.15": [[0.0, 0.9]], "0.20": [[0.0, 0.906]]},
    )
    assert comparison.verdict(rows) == "outside"
    assert comparison.worst(rows).series == "0.20"
    assert comparison.verdict([]) == "outside"


# --- the sweep


def test_a_curve_is_that_of_fit(tiny, tmp_path):
    runs = small_runs(tiny)
    curves = gaussian_curves.sweep(runs, tiny, tmp_path, chunk_steps=10)
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
        np.testing.assert_array_equal(curves[run].rmse[[9, 19, 22]], seen)  # fit tells the last of each chunk


def test_chunks_do_not_change_a_curve_and_runs_differ(tiny, tmp_path):
    runs = small_runs(tiny)
    one = gaussian_curves.sweep(runs, tiny, tmp_path / "one", chunk_steps=7)
    other = gaussian_curves.sweep(runs, tiny, tmp_path / "other", chunk_steps=50)
    assert {run: curve.loss for run, curve in one.items()} == {run: curve.loss for run, curve in other.items()}
    assert len({curve.loss for curve in one.values()}) == len(runs)
    assert all(len(one[run].loss) == run.num_steps for run in runs)


def test_what_is_complete_is_not_trained_again(tiny, tmp_path):
    runs = small_runs(tiny)
    first = gaussian_curves.sweep(runs[:3], tiny, tmp_path)
    told = []
    second = gaussian_curves.sweep(runs, tiny, tmp_path, report=told.append)
    assert [second[run] for run in runs[:3]] == [first[run] for run in runs[:3]]
    assert {now.run for now in told} == {runs[3].name}
    assert (told[-1].done, told[-1].total) == (4 * 23, 4 * 23)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6, 7])
def test_ctrl_c_loses_nothing(tiny, tmp_path, after):
    runs = small_runs(tiny, seeds=(0,))
    whole = gaussian_curves.sweep(runs, tiny, tmp_path / "whole", chunk_steps=6)
    told = []

    def interrupt(now):
        told.append(now.done)
        if len(told) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gaussian_curves.sweep(runs, tiny, tmp_path / "cut", chunk_steps=6, report=interrupt)
    done = []
    cut = gaussian_curves.sweep(
        runs, tiny, tmp_path / "cut", chunk_steps=6, report=lambda now: done.append((now.run, now.done))
    )
    assert {run: curve.loss for run, curve in cut.items()} == {run: curve.loss for run, curve in whole.items()}
    assert all(steps > told[-1] for _, steps in done)  # nothing that was done is done again
    assert not list(tmp_path.glob("cut/private/*/checkpoints"))


KILLED = """
import os, signal, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 2)
from dpmf_jax import synthetic
from dpmf_jax.protocol import train
from experiments.reproduce import gaussian_curves
from experiments.reproduce.figures import Point

out, after = Path(sys.argv[1]), int(sys.argv[2])
ratings = synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=3)
series = ("0.15", "0.90", "non-private")
plotted = [Point(name, 22.0, 0.9, "rmse", "line_end", "iteration") for name in series]
runs = gaussian_curves.plan(plotted, series, (0, 1), ratings.rating_range)
told = []

def report(now):
    told.append(now)
    if len(told) == after:
        os.kill(os.getpid(), signal.SIGKILL)

gaussian_curves.sweep(runs, ratings, out, num_devices=2, chunk_steps=6, checkpoint_seconds=0.0, report=report)
print("compiled", train._cache_size())
"""


@pytest.mark.slow
def test_kill_9_and_one_compilation_on_two_devices(tmp_path):
    """Killed in the middle of two series and resumed: the same bytes. The private series share one program."""

    def start(folder: str, after: int) -> subprocess.CompletedProcess:
        words = [sys.executable, "-c", KILLED, str(tmp_path / folder), str(after)]
        return subprocess.run(words, capture_output=True, text=True)

    whole = start("whole", 0)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.split() == ["compiled", "2"]
    for after in (3, 9, 2):
        assert start("cut", after).returncode == -signal.SIGKILL
    last = start("cut", 0)
    assert last.returncode == 0, last.stderr
    assert last.stdout.split() == ["compiled", "2"]
    losses = [
        {path.parent.name: json.loads(path.read_text())["loss"] for path in (tmp_path / name).rglob("run.json")}
        for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6


@pytest.mark.parametrize("lost", ["the newest", "all"])
def test_a_checkpoint_that_is_lost_costs_time_only(tiny, tmp_path, lost):
    runs = small_runs(tiny, series=("0.15",), seeds=(0,))
    whole = gaussian_curves.sweep(runs, tiny, tmp_path / "whole", chunk_steps=6)

    def interrupt(now):
        if now.done == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gaussian_curves.sweep(runs, tiny, tmp_path / "cut", chunk_steps=6, checkpoint_seconds=0.0, report=interrupt)
    kept = sorted((tmp_path / "cut" / "private" / runs[0].name / "checkpoints").iterdir())
    assert len(kept) == 2
    for path in kept[-1:] if lost == "the newest" else kept:
        path.unlink()
    cut = gaussian_curves.sweep(runs, tiny, tmp_path / "cut", chunk_steps=6)
    assert cut[runs[0]].loss == whole[runs[0]].loss


def test_a_run_that_diverges_stops_with_its_step_and_stores_nothing(tiny, tmp_path):
    (run,) = small_runs(tiny, series=("0.15",), seeds=(0,))
    wild = run._replace(config=dataclasses.replace(run.config, learning_rate=1e6))
    with pytest.raises(fitting.Diverged, match=r"diverged at step \d+"):
        gaussian_curves.sweep([wild], tiny, tmp_path)
    assert not list((tmp_path / "private").rglob("*.json"))


def test_a_folder_with_other_ratings_or_settings_is_refused(tiny, tmp_path):
    runs = small_runs(tiny, series=("0.15",), seeds=(0,))
    gaussian_curves.sweep(runs, tiny, tmp_path)
    others = synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=4)
    with pytest.raises(UsageError, match="another ratings already"):
        gaussian_curves.sweep(runs, others, tmp_path)
    with pytest.raises(UsageError, match="another steps already"):
        gaussian_curves.sweep(small_runs(tiny, series=("0.15",), seeds=(0,), steps=24), tiny, tmp_path)
    changed = runs[0]._replace(config=gaussian_curves.config("0.20", tiny.rating_range))
    with pytest.raises(UsageError, match="another config already"):
        gaussian_curves.sweep([changed], tiny, tmp_path)


def test_checkpoints_and_losses_are_the_owner_s_alone(tiny, tmp_path):
    def interrupt(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gaussian_curves.sweep(small_runs(tiny), tiny, tmp_path, chunk_steps=6, report=interrupt)
    found = [path for path in (tmp_path / "private").rglob("*") if path.is_file()]
    assert len(found) == 2
    assert {path.stat().st_mode & 0o077 for path in [*found, tmp_path / "private"]} == {0}


# --- the command


def command_line(*words: str) -> int:
    try:
        return cli.main(["reproduce", *words])
    except SystemExit as ended:
        return int(ended.code or 0)


def test_list(capsys):
    assert command_line("--list", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["figures"]
    assert row["name"] == "001/fig1"
    assert {"paper", "number", "data", "minutes", "scale"} < set(row)
    assert command_line("--list") == 0
    assert "001/fig1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "no figure is named"),
        (("001/fig99",), "there is no figure"),
        (("001/fig1", "--series", "0.4"), "no series 0.4"),
        (("001/fig1", "--seeds", "1", "1"), "distinct"),
        (("001/fig1", "--seeds", "-1"), ""),
    ],
)
def test_usage(words, what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(*words) == 2
    assert what in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_outside_tolerance_writes_everything_and_exits_6(tmp_path, capsys):
    """Ratings that are not MovieLens-1M give other curves: the command must say so."""
    data, out = rating_file(tmp_path / "data"), tmp_path / "out"
    words = ("001/fig1", "--series", "0.15", "non-private", "--seeds", "0", "1", "--data-dir", str(data))
    words = (*words, "--out", str(out), "--devices", "1", "--json")
    assert command_line(*words) == 6
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["result"] == "outside"
    assert "from the paper" in said.err
    assert report.NOTICE in said.err
    assert {path.name for path in out.iterdir()} == {
        "private",
        *(f"001-fig1.{end}" for end in ("csv", "json", "md", "svg")),
    }
    for path in out.glob("001-fig1.*"):
        assert report.NOTICE.lower() in path.read_text().lower()
    xml.etree.ElementTree.parse(out / "001-fig1.svg")

    written = json.loads((out / "001-fig1.json").read_text())
    assert written == {name: value for name, value in told.items() if name not in ("out", "files")}
    rows = list(csv.DictReader(io.StringIO((out / "001-fig1.csv").read_text())))
    assert len(rows) == len(told["rows"])
    for row, same in zip(rows, told["rows"], strict=True):
        assert (row["series"], int(row["step"]), row["result"]) == (same["series"], same["step"], same["result"])
        values = np.array(row["values"].split(), float)
        assert len(values) == 2
        assert float(row["difference"]) == pytest.approx(values.mean() - float(row["paper"]))
        assert {"seeds", "commit", "device", "tolerance", "tau", "guarantee"} < set(row)

    private, none = told["series"]["0.15"], told["series"]["non-private"]
    assert private["headline"].startswith("experiment, do not release: claimed ε = 7.4360")
    assert private["guarantee"]["seeded"]
    assert none["headline"].startswith("experiment, do not release: no privacy guarantee")
    assert told["command"] == "dpmf reproduce 001/fig1 --series 0.15 non-private --seeds 0 1"

    before = {path: path.read_bytes() for path in out.glob("001-fig1.*")}
    assert command_line(*words) == 6  # nothing is trained, the same is written again
    assert {path: path.read_bytes() for path in before} == before


def test_ctrl_c_names_the_command_that_resumes(tmp_path):
    data, out = rating_file(tmp_path / "data"), tmp_path / "out"
    words = ["001/fig1", "--seeds", *map(str, range(12)), "--data-dir", str(data), "--out", str(out), "--devices", "1"]
    start = [sys.executable, "-m", "experiments.cli", "reproduce", *words]
    complete = out / "private" / "0.15-seed-0" / "run.json"
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as run:
        while not complete.exists():  # an interrupt while XLA compiles can crash Python on its way out
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        said = run.communicate()[1]
    assert run.returncode == 130, said
    assert f"resume with: dpmf reproduce {' '.join(words)}" in said
    assert not list(out.glob("001-fig1.*"))


def test_words_are_the_command():
    made = reproduce_command.Command(figure="001/fig1", series=("0.15", "non-private"), seeds=(4,), json=True)
    assert reproduce_command.words(made) == "dpmf reproduce 001/fig1 --series 0.15 non-private --seeds 4 --json"
    assert cli.parse("reproduce", reproduce_command.Command, reproduce_command.words(made).split()[2:]) == made


def test_without_matplotlib_the_rest_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    data, out = rating_file(tmp_path / "data"), tmp_path / "out"
    words = ("--series", "0.15", "--seeds", "0", "--data-dir", str(data), "--out", str(out), "--devices", "1")
    assert command_line("001/fig1", *words) == 6
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert {path.suffix for path in out.glob("001-fig1.*")} == {".csv", ".json", ".md"}
    assert ".svg" not in (out / "001-fig1.md").read_text()


@pytest.mark.slow
@pytest.mark.data
def test_figure_1_at_its_noisiest(data_dir, tmp_path):
    """ε_i = 0.15, one seed: 791 steps on MovieLens-1M, inside the tolerance. The whole figure: dpmf reproduce."""
    words = ("--series", "0.15", "--seeds", "0", "--data-dir", str(data_dir), "--out", str(tmp_path))
    assert command_line("001/fig1", *words) == 0
