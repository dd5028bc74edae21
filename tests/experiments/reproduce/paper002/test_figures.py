"""Paper 002 reproduced: runs that are what the mechanisms do, searches by validation alone,
figures, the command.
"""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.reproduce import page
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper002 import budget, figures, report, runs, table
from experiments.reproduce.paper002.runs import Run
from experiments.reproduce.paper002.table import FIGURES, Line
from tests.cases import reproduce as cases
from tests.cases.reproduce import RANKS, SKETCH

pytestmark = pytest.mark.usefixtures("quick_compilation", "small")

PAPERS = ("002/fig1", "002/fig2", "002/fig3", "002/fig4")


def figure(name, data, store, seeds=(0,)):
    return figures.run(FIGURES[name], Bench(data, store, seeds, lambda text: None))


def values(outcome, series, axis):
    return {row.x: row.value for row in outcome.rows if (row.series, row.axis) == (series, axis)}


@pytest.mark.seconds
def test_every_storage_goes_over_lambda_at_its_own_rate(data, store):
    outcome = figure("002/fig1", data, store)
    for series, line in SKETCH["FIG1"].items():
        rate = outcome.more["searches"][line.label]["learning_rate"]
        over = {x: Run(*line, rate, x, None, 2, 0) for x in (0.0, 0.1, 10.0)}
        found = runs.measure(list(over.values()), data, store)
        for axis in ("rmse", "rmse_valid", "rmse_train"):
            assert values(outcome, series, axis) == {
                x: found[run].values[axis] for x, run in over.items()
            }
    (level,) = values(outcome, "global mean", "rmse_train").values()
    assert level == pytest.approx(np.std(data.train.value), rel=1e-5)
    assert 0 < values(outcome, "means alone", "rmse_train")[0.0] < level
    assert "EachMovie" in outcome.notes[1]


@pytest.mark.slow
def test_the_best_lambdas_are_the_searches(data, store):
    outcome = figure("002/fig2", data, store, (0, 1))
    for rank in RANKS:
        for series, line in (
            ("γ = 4", Line("sketched", rank, 4.0)),
            ("regular", Line("regular", rank, 1.0)),
        ):
            found = outcome.more["searches"][line.label]
            assert values(outcome, series, "best_lambda")[rank] == found["regularization"]
            assert values(outcome, series, "best_rate")[rank] == found["learning_rate"]
            (row,) = [
                r for r in outcome.rows if (r.series, r.axis, r.x) == (series, "rmse_valid", rank)
            ]
            assert row.values[0] == min(found["tried"].values())
            assert len(row.values) == 2


@pytest.mark.seconds
def test_thresholds_have_the_rate_and_lambda_that_were_found_without_one(data, store):
    outcome = figure("002/fig3", data, store)
    for line in SKETCH["SKETCHED"]:
        found = outcome.more["searches"][line.label]
        plain = Run(*line, found["learning_rate"], found["regularization"], None, 2, 0)
        over = {
            1.0: plain._replace(threshold=1.0),
            16.0: plain._replace(threshold=16.0),
            math.inf: plain,
        }
        measured = runs.measure(list(over.values()), data, store)
        for axis in ("rmse", "rmse_top", "skipped"):
            assert values(outcome, line.label, axis) == {
                x: measured[run].values[axis] for x, run in over.items()
            }
        assert (
            values(outcome, line.label, "skipped")[1.0]
            > values(outcome, line.label, "skipped")[math.inf]
            == 0
        )
    levels = {row.series for row in outcome.rows if row.kind == "level"}
    assert levels == {"regular, d = 2", "regular, d = 3", "means alone", "global mean"}


@pytest.mark.seconds
def test_divergences_are_those_of_the_same_runs_with_intervals(data, store):
    before = {path.name for path in store.rglob("*.json")}
    outcome = figure("002/fig4", data, store)
    figure("002/fig3", data, store)
    assert {path.name for path in store.rglob("*.json")} >= before
    for axis in ("kl", "kl_same", "kl_top", "kl_same_top"):
        here = {(row.series, row.x): row.value for row in outcome.rows if row.axis == axis}
        ends = {
            (one["series"], one["x"]): one
            for one in outcome.more["intervals"]
            if one["axis"] == axis
        }
        assert here.keys() == ends.keys()
        assert {series for series, _ in here} >= {"means alone", "regular, d = 2", "d = 3, γ = 4"}
        assert all(end["lower"] <= end["upper"] for end in ends.values())
    assert any("bounds nothing" in note for note in outcome.notes)


@pytest.mark.seconds
def test_every_figure_says_that_nothing_is_guaranteed(data, store):
    for name in PAPERS:
        one, outcome = FIGURES[name], figure(name, data, store)
        assert "status none" in outcome.notes[0]
        told = page.summary(one, outcome, data.ratings, command="x", commit="c", device="d")
        names = {row["series"] for row in told["rows"]}
        assert names == {setting["series"] for setting in told["settings"]}
        plain = (s for s in told["settings"] if s["series"] not in runs.CONTROLS)
        promises = {s["series"]: s["headline"] for s in plain if "threshold" not in s["config"]}
        assert all(promise.endswith("status none") for promise in promises.values())
        limited = [s["headline"] for s in told["settings"] if s.get("config", {}).get("threshold")]
        assert bool(limited) == (name in ("002/fig3", "002/fig4"))
        assert all("no privacy parameter" in promise for promise in limited)
        for line in report.files(one, told)[".csv"].splitlines()[1:]:
            assert any(word in line for word in ("status none", "not private"))


@pytest.mark.seconds
def test_a_picture_survives_runs_that_left_the_finite_numbers(data, store):
    for name in PAPERS:
        outcome = figure(name, data, store)
        gone = [
            one._replace(value=math.inf) if place % 2 and "best" not in one.axis else one
            for place, one in enumerate(outcome.rows)
        ]
        told = page.summary(
            FIGURES[name],
            outcome._replace(rows=gone),
            data.ratings,
            command="x",
            commit="c",
            device="d",
        )
        assert report.picture(FIGURES[name], told) == report.picture(FIGURES[name], told)
        assert "diverged" in "\n".join(report.section(FIGURES[name], told, "x.svg"))


@pytest.mark.seconds
def test_a_plan_has_room_for_all_that_is_trained(data, tmp_path, monkeypatch):
    """Figure by figure: never more runs than planned, and at most the shared ones fewer."""
    monkeypatch.setattr(table, "SEARCH_RUNS", 8)
    monkeypatch.setattr(table, "SEEDS", {"small": (0, 1), "full": (0,)})
    for name in PAPERS:
        before = len(list(tmp_path.rglob("*.json")))
        figure(name, data, tmp_path, (0, 1))
        trained = len(list(tmp_path.rglob("*.json"))) - before
        planned = sum(work.runs for work in table.plan(name, "small"))
        assert 0.5 * planned <= trained <= planned, name
    assert table.minutes("002/fig3", "full") > 0.2


@pytest.mark.seconds
def test_what_can_be_proved_is_compared_once_and_kept(data, tmp_path, monkeypatch):
    """One method of `budget` at one ε."""
    monkeypatch.setattr(budget, "METHODS", {"joint noise": budget.METHODS["joint noise"]})
    monkeypatch.setattr(
        budget, "STAGES", {name: values[:1] for name, values in budget.STAGES.items()}
    )
    monkeypatch.setattr(budget, "EPSILONS", (4.0,))
    one, told = FIGURES["002/budget"], []
    compare = budget.compare
    monkeypatch.setattr(
        budget,
        "compare",
        lambda *given: told.append(given) or compare(*given, epsilons=(4.0,)),
    )
    first = figure(one.name, data, tmp_path)
    again = figure(one.name, data, tmp_path)
    assert first == again
    assert [seeds for _, seeds, _ in told] == [
        (0, 1, 2)
    ]  # more than the small scale's one: they are short
    assert {row.series for row in first.rows} == {
        "joint noise",
        "priced item means",
        "global mean",
        "item means",
    }
    shown = page.summary(one, first, data.ratings, command="x", commit="c", device="d")
    content = report.files(one, shown)
    assert content[".svg"].startswith("<?xml")
    assert "proved" in content[".md"]
    assert "status none" not in content[".md"]


def data_folder(folder: Path) -> Path:
    """The same ratings as a data set, so that its programs are compiled already."""
    return cases.rating_file(folder, cases.some("ml-1m"))


@pytest.mark.seconds
def test_the_command_writes_rows_pictures_and_a_page_and_trains_once(tmp_path, capsys, monkeypatch):
    folder, docs = data_folder(tmp_path / "data"), tmp_path / "docs"
    words = ("002/fig4", "002/claims", "--data-dir", str(folder), "--out", str(tmp_path / "out"))
    words += ("--devices", "1", "--docs", str(docs), "--json")
    assert cases.command_line(*words) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["figure"] for one in said["figures"]] == ["002/fig4"]
    made = {
        path: path.read_bytes()
        for top in ("out/002-fig4", "docs")
        for path in (tmp_path / top).rglob("*.*")
    }
    wanted = {
        f"002-fig4-ml-1m{suffix}" for suffix in (".csv", ".json", ".svg", ".md", "-intervals.csv")
    }
    assert wanted | {"002.md"} <= {path.name for path in made}
    for path in made:
        assert str(tmp_path) not in path.read_text()
    page = (docs / "002.md").read_text()
    assert "There is no differential privacy in a threshold" in page
    assert "status none" in page
    assert "dpmf reproduce 002/fig1" in page  # was not run
    monkeypatch.setattr(
        runs, "_trained", lambda runs, *_: pytest.fail("again") if runs else iter(())
    )
    assert cases.command_line(*words) == 0
    assert {path: path.read_bytes() for path in made} == made


def test_the_full_scale_has_more_epochs_and_seeds_and_says_so(tmp_path, capsys, monkeypatch):
    importlib.import_module("experiments.reproduce.paper002.claims")  # it reads the whole table
    monkeypatch.setattr(table, "FIG1", {"regular": Line("regular", 3, 1.0)})
    folder = data_folder(tmp_path / "data")
    words = (
        "002/fig1",
        "--scale",
        "full",
        "--data-dir",
        str(folder),
        "--out",
        str(tmp_path / "out"),
    )
    assert cases.command_line(*words, "--devices", "1", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["figures"]
    assert {s["config"]["num_epochs"] for s in told["settings"] if "config" in s} == {3}
    assert [0, 1, 2] in [s["seeds"] for s in told["settings"]]
    assert "--scale full" in told["command"]
    assert "T = 3 epochs;" in told["notes"][2]


def test_refusals_and_the_list(tmp_path, capsys):
    assert cases.command_line("003/fig1", "--scale", "full", "--out", str(tmp_path)) == 2
    assert "paper 001" in capsys.readouterr().err
    assert cases.command_line("002/fig1", "--ranks", "4", "--out", str(tmp_path)) == 2
    assert cases.command_line("002/fig9", "--out", str(tmp_path)) == 2
    assert "002/fig" in capsys.readouterr().err
    assert (
        cases.command_line("002/fig1", "--data-dir", str(tmp_path), "--out", str(tmp_path / "o"))
        == 3
    )
    assert "ml-1m" in capsys.readouterr().err
    assert (
        cases.command_line("--list", "--json", "--data-dir", str(data_folder(tmp_path / "d"))) == 0
    )
    told = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in told["sketch"]}
    assert rows["002/fig3"]["here"] == ["ml-1m"]
    assert rows["002/fig3"]["full"]["minutes"] > rows["002/fig3"]["small"]["minutes"]
    assert rows["002/all"]["full"]["minutes"] == pytest.approx(
        sum(
            row["full"]["minutes"]
            for name, row in rows.items()
            if row["here"] and name != "002/all"
        ),
        abs=0.2,
    )
    assert told["sketch_claims"]["name"] == "002/claims"
