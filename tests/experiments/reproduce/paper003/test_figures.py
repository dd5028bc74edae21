"""Paper 003 reproduced: stored runs of the mechanisms, rows and pictures beside a baseline."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from dpmf_jax import layout, protocol
from experiments.reproduce import page
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper003 import (
    density,
    figures,
    measurements,
    paper,
    report,
    runs,
    table,
)
from experiments.reproduce.paper003.runs import Run
from tests.cases import reproduce as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHORT, LONG = (1, 3), (2, 4)
EPSILONS = (0.15, 0.8)
MODULES = (table, runs, figures, density, measurements)
SMALL = {
    "SHORT": SHORT,
    "LONG": LONG,
    "EPSILONS": EPSILONS,
    "WIDE": (50.0,),
    "DYNAMIC_EPSILONS": (0.1, 0.8),
    "LONG_SEEDS": {"ml-100k": 1},
    "ALONG_EPSILON": 0.15,
    "TOTALS": (2.4,),
    "RANK": 3,
    "S1_FROM": 1,
    "USERS": 15,
    "ITEMS": 6,
    "NEIGHBOURS": 4,
    "DRAWS": 3,
    "SOUND_ITERATIONS": (2,),
}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Everything at a size of seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name, value in SMALL.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        patch.setattr(paper, "SEEDS", (0,))
        yield


def in_two_parts(name="ml-100k"):
    """Both parts have the same pairs and other values, so that they share their compiled
    programs.
    """
    made = runs.Data(cases.some(name))
    other = cases.some(name, seed=4).take(np.arange(0, 380, 19))
    made.__dict__["split"] = (
        dataclasses.replace(made.ratings, value=6 - made.ratings.value),
        other,
    )
    return made


@pytest.fixture(scope="module")
def data():
    return in_two_parts()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


def model_errors(state, parts):
    whole = protocol.factors(state)
    found = []
    for part in parts:
        users, items = (
            np.asarray(side, np.float64) for side in (whole.user_factors, whole.item_factors)
        )
        predicted = float(whole.center) + np.sum(users[part.user] * items[part.item], axis=1)
        found.append(float(np.mean(np.abs(predicted - part.value))))
    return found


@pytest.mark.seconds
def test_s1_from_the_baselines_users_is_the_published_mechanism_itself(data, store):
    """Asked once and answered for every ε and number of passes, on the baseline's fit: nothing but
    time is saved.
    """
    for epsilon in EPSILONS:
        run = Run("S1", epsilon, 1, "held-out", SHORT)
        found = runs.measure([run], data, store)[run]
        laid = data.layout("held-out")
        init_key, train_key = runs._keys(run)
        for t in SHORT:
            made = runs.mechanism(run._replace(at=(t,)), data)
            end, _ = protocol.train(made, train_key, protocol.begin(made, init_key, laid), laid, 1)
            train, test = model_errors(end, data.split)
            assert found.errors["train"][t].mean == pytest.approx(train, rel=1e-4)
            assert found.errors["test"][t].mean == pytest.approx(test, rel=1e-4)


@pytest.mark.seconds
@pytest.mark.parametrize("scenario", ["S2", "S3", "baseline"])
def test_iterations_are_measured_at_every_checkpoint_of_one_run(data, store, scenario):
    at = LONG if scenario == "S3" else SHORT
    run = Run(scenario, 0.0 if scenario == "baseline" else 5.0, 0, "all", at)
    found = runs.measure([run], data, store)[run]
    made, (init_key, train_key) = runs.mechanism(run, data), runs._keys(run)
    state = protocol.begin(made, init_key, data.layout("all"))
    for t in range(1, at[-1] + 1):
        state, _ = protocol.train(made, train_key, state, data.layout("all"), 1)
        if t in at:
            assert found.errors["train"][t].mean == pytest.approx(
                model_errors(state, [data.ratings])[0], rel=1e-4
            )
    assert set(found.errors) == {"train"}
    assert set(found.errors["train"]) == set(at)


@pytest.mark.seconds
def test_what_is_stored_is_not_trained_again_and_another_setting_is(data, tmp_path, monkeypatch):
    told = []
    some = [Run("S2", 1.0, 0, "held-out", SHORT), Run("S1", 1.0, 0, "held-out", SHORT)]
    first = runs.measure(some, data, tmp_path, told.append)
    assert len(told) == 3  # the baseline, whose users S1 has
    assert all(path.parent.name == "private" for path in tmp_path.rglob("*.*"))
    for name in ("_iterated", "_released"):
        monkeypatch.setattr(
            runs,
            name,
            lambda runs, *_: pytest.fail("it trained again") if runs else iter(()),
        )
    again = runs.measure(some, data, tmp_path, told.append)
    assert {run: again[run] for run in some} == {run: first[run] for run in some}
    with pytest.raises(pytest.fail.Exception):
        runs.measure([some[0]._replace(epsilon=2.0)], data, tmp_path)


def test_users_alone_learn_from_no_other_and_v_stays(data):
    run = Run("users-alone", 0.0, 0, "all", SHORT)
    made, (init_key, train_key) = runs.mechanism(run, data), runs._keys(run)
    ends = []
    for one in (data.ratings, dataclasses.replace(data.ratings, value=6 - data.ratings.value)):
        laid = layout.make(one, num_devices=1)
        start = protocol.begin(made, init_key, laid)
        end, _ = protocol.train(made, train_key, start, laid, 1)
        assert np.array_equal(start.public.item_factors, end.public.item_factors)
        ends.append(end.private.user_factors)
    assert not np.allclose(ends[0], ends[1])


def test_a_run_that_diverges_is_stored_as_that(data, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "LEARNING_RATE", 1e6)
    run = Run("baseline", 0.0, 0, "held-out", (1, 30))
    found = runs.measure([run], data, tmp_path)[run]
    assert found.errors["test"][30].mean == math.inf
    assert runs.measure([run], data, tmp_path)[run] == found


def values(outcome, series, axis):
    return {row.x: row.value for row in outcome.rows if (row.series, row.axis) == (series, axis)}


def figure(name, data, store, seeds=(0,), say=lambda text: None):
    return figures.run(table.FIGURES[name], Bench(data, store, seeds, say))


def test_a_cdf_has_both_panels_and_the_baseline_on_both_parts(data, store):
    outcome = figure("003/fig4", data, store)
    assert values(outcome, "(a) ε = 0.15", "train").keys() == {1.0, 3.0}
    assert values(outcome, "(b) 3 iterations", "test").keys() == set(EPSILONS)
    assert (
        values(outcome, "(a) ε = 0.15", "train")[3.0]
        == values(outcome, "(b) 3 iterations", "train")[0.15]
    )
    assert {(row.axis, row.part) for row in outcome.rows if "train" in row.axis} == {
        ("train", "all"),
        ("increase_train", "all"),
    }
    assert {row.part for row in outcome.rows if "test" in row.axis} == {"held-out"}
    assert len(outcome.more["curves"]) == 2 * 5
    for curve in outcome.more["curves"]:
        assert len(curve["cdf"]) == len(table.THRESHOLDS)
        assert all(a <= b for a, b in zip(curve["cdf"], curve["cdf"][1:], strict=False))


@pytest.mark.seconds
def test_an_increase_is_over_the_baseline_of_the_same_seed(data, store):
    outcome = figure("003/fig8", data, store, (0, 1))
    for axis, part in (("train", "all"), ("test", "held-out")):
        for series, scenario, x in (("(a) S2", "S2", 0.8), ("(a) S1, 3 iterations", "S1", 0.15)):
            (row,) = [
                r
                for r in outcome.rows
                if (r.series, r.axis, r.x) == (series, f"increase_{axis}", x)
            ]
            for seed, value in enumerate(row.values):
                mine, base = (
                    Run(scenario, x, seed, part, SHORT),
                    Run("baseline", 0.0, seed, part, SHORT),
                )
                found = runs.measure([mine, base], data, store)
                ours, theirs = (found[one].errors[axis][3].mean for one in (mine, base))
                assert value == pytest.approx(ours - theirs)
    seeds = {s["series"]: s["seeds"] for s in outcome.settings}
    assert seeds["(a) S2"] == [0, 1]
    assert seeds["(b) S3"] == [0]  # long runs have so many seeds
    assert {row.part for row in outcome.rows if row.series == "(b) S3"} == {"held-out"}
    assert values(outcome, "(a) S1, exact with Mμ", "increase_train").keys() == {0.15, 0.8, 50.0}
    assert all(row.paper is None for row in outcome.rows)


@pytest.mark.seconds
def test_the_papers_numbers_stand_beside_its_own_places_alone(store, tmp_path):
    outcome = figure("003/fig7", in_two_parts("netflix-52"), tmp_path)
    papers = {
        (row.series, row.axis, row.x): row.paper for row in outcome.rows if row.paper is not None
    }
    assert papers == {
        ("(a) S1, 3 iterations", "increase_train", 0.15): 0.03,
        ("(a) S2", "increase_train", 0.15): 0.14,
        ("(b) S3", "increase_train", 0.8): 0.1,
    }
    assert {row.result for row in outcome.rows} == {"informative"}
    assert "191,668 users and 100 movies" in outcome.notes[0]
    assert "40 users and 20 movies" in outcome.notes[0]


@pytest.mark.seconds
def test_crowds_share_the_usual_run(data, store, monkeypatch):
    monkeypatch.setattr(table, "JOINS", (0.005, 0.02))
    asked = []
    measure = figures.measure
    monkeypatch.setattr(
        figures, "measure", lambda runs, *rest: asked.append(runs) or measure(runs, *rest)
    )
    outcome = figure("003/fig10", data, store)
    assert values(outcome, "(a) leaving 0.01", "increase_train").keys() == {0.005, 0.02}
    assert values(outcome, "(b) joining 0.01", "increase_train").keys() == {0.005, 0.01, 0.02}
    dynamic = {run for run in asked[0] if run.scenario == "S3"}
    assert Run("S3", 0.1, 0, "held-out", LONG) in dynamic
    assert {(run.join, run.leave) for run in dynamic if run.join} == {
        (0.02, 0.01),
        (0.01, 0.005),
        (0.01, 0.01),
        (0.01, 0.02),
    }


@pytest.mark.seconds
def test_everything_in_the_sound_figure_costs_its_place(data, store):
    outcome = figure("003/sound", data, store)
    series = {row.series for row in outcome.rows}
    assert {
        "S1 as published",
        "S2 as published",
        "S1, U public",
        "S2 per user",
        "priced item means",
    } <= series
    for setting in outcome.settings:
        if setting["x"] is not None:
            assert "ε = 2.4" in setting["headline"], setting["series"]
    units = {
        setting["series"]: setting["headline"].split("unit: ")[-1] for setting in outcome.settings
    }
    assert units["S2 per user"].startswith("one user")
    assert units["S1, U public"].startswith("one rating value")
    assert units["noisy statistics"].startswith("one rating presence")
    assert {row.part for row in outcome.rows} == {"held-out"}
    means = {row.series: row.value for row in outcome.rows if row.axis == "test"}
    train, test = data.split
    assert means["global mean"] == pytest.approx(
        np.mean(np.abs(np.mean(train.value) - test.value)), rel=1e-5
    )


@pytest.mark.seconds
def test_the_density_keeps_to_epsilon_where_u_is_public_and_not_where_it_is_fitted(data, store):
    outcome = figure("003/theorem1", data, store)
    for series in (density.PUBLIC, density.LEMMA, density.BY_PASSES):
        assert 0.01 < max(values(outcome, series, "log_ratio").values()) <= 1 + 1e-4
    assert max(values(outcome, density.PUBLIC, "log_ratio").values()) == pytest.approx(1, abs=1e-3)
    kept = max(values(outcome, density.KEPT, "log_ratio").values())
    longest = {s["series"]: s["longest_user_factor"] for s in outcome.settings}[density.KEPT]
    assert 1 < kept <= longest * (1 + 1e-3)  # what the theorem's norm of 1 at most is for
    assert max(values(outcome, density.REFITTED, "log_ratio").values()) > 2 * kept
    told = []
    again = figure("003/theorem1", data, store, say=told.append)
    assert (again.rows, told) == (outcome.rows, [])


def test_neighbours_differ_in_one_value_moved_to_the_other_end(data):
    one = density.slice_of(data.ratings)
    assert (one.num_users, one.num_items) == (15, 6)
    laid = layout.make(one, num_devices=1)
    here, _ = layout.stored_values(laid)
    for other in density.neighbours(one, laid, 0):
        there, _ = layout.stored_values(other)
        (place,) = np.argwhere(np.asarray(here) != np.asarray(there))
        before, after = float(here[tuple(place)]), float(there[tuple(place)])
        assert after in (1.0, 5.0)
        assert abs(after - before) >= 2


@pytest.mark.seconds
def test_a_picture_survives_runs_that_left_the_finite_numbers(data, store):
    for name in ("003/fig4", "003/fig8", "003/sound", "003/theorem1"):
        outcome = figure(name, data, store)
        gone = [
            one._replace(value=math.inf) if place % 2 else one
            for place, one in enumerate(outcome.rows)
        ]
        shown = page.summary(
            table.FIGURES[name],
            outcome._replace(rows=gone),
            data.ratings,
            command="x",
            commit="c",
            device="d",
        )
        assert report.picture(table.FIGURES[name], shown).startswith("<?xml")
        text = "\n".join(report.section(table.FIGURES[name], shown, "x.svg"))
        assert "diverged" in text
        assert report.picture(table.FIGURES[name], shown) == report.picture(
            table.FIGURES[name], shown
        )


def test_the_whole_paper_is_every_figure_once():
    expand = table.CATALOGUE.expand
    assert [one.name for one in expand(["003/fig2", "003/all"])][:3] == [
        "003/fig2",
        "003/fig1",
        "003/fig3",
    ]
    assert len(expand(["003/all"])) == 12


def data_folder(folder: Path) -> Path:
    return cases.rating_file(folder, cases.some("ml-100k"))


@pytest.mark.seconds
def test_the_command_writes_rows_pictures_and_a_page_and_trains_once(tmp_path, capsys, monkeypatch):
    folder, docs = data_folder(tmp_path / "data"), tmp_path / "docs"
    words = ("003/fig6", "003/claims", "--data-dir", str(folder), "--out", str(tmp_path / "out"))
    words += ("--devices", "1", "--docs", str(docs), "--json", "--seeds", "0")
    assert cases.command_line(*words) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["figure"] for one in said["figures"]] == ["003/fig6"]
    made = {
        path: path.read_bytes()
        for top in ("out/003-fig6", "docs")
        for path in (tmp_path / top).rglob("*.*")
    }
    names = {path.name for path in made}
    name = said["figures"][0]["ratings"]["name"]
    wanted = {f"003-fig6-{name}{suffix}" for suffix in (".csv", ".json", ".svg", ".md", "-cdf.csv")}
    assert wanted | {"003.md"} <= names
    for path in made:
        assert str(tmp_path) not in path.read_text()
    assert said["objective_claims"]["counts"]["reproduced"] >= 3
    page = (docs / "003.md").read_text()
    assert "Whether it is of use has not been measured yet" in page
    assert f"![{table.FIGURES['003/fig6'].what}](003/003-fig6-{name}.svg)" in page
    assert "dpmf reproduce 003/fig1" in page  # was not run
    monkeypatch.setattr(
        runs, "_iterated", lambda runs, *_: pytest.fail("again") if runs else iter(())
    )
    assert cases.command_line(*words) == 0
    assert {path: path.read_bytes() for path in made} == made


def test_refusals_and_the_list(tmp_path, capsys):
    assert cases.command_line("003/fig11", "--out", str(tmp_path)) == 2
    assert "003/fig1" in capsys.readouterr().err
    assert cases.command_line("003/fig1", "--ranks", "4", "--out", str(tmp_path)) == 2
    assert "paper 001" in capsys.readouterr().err
    assert (
        cases.command_line("003/fig1", "--data-dir", str(tmp_path), "--out", str(tmp_path / "o"))
        == 3
    )
    assert "netflix-52" in capsys.readouterr().err
    assert (
        cases.command_line("--list", "--json", "--data-dir", str(data_folder(tmp_path / "d"))) == 0
    )
    told = json.loads(capsys.readouterr().out)
    here = {row["name"]: row["here"] for row in told["objective"]}
    assert here["003/fig2"] == ["ml-100k"]
    assert here["003/fig1"] == []
    assert told["objective_claims"]["name"] == "003/claims"
