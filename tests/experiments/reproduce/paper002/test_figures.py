"""Paper 002 reproduced: runs that are what the mechanisms do, searches by validation alone,
figures, the command.
"""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from audits.release import kl
from dpmf_jax import protocol
from dpmf_jax.devices import keys
from dpmf_jax.mechanisms.sketch import online
from dpmf_jax.mechanisms.sketch import published as sketch
from experiments.reproduce import page
from experiments.reproduce.paper import Bench
from experiments.reproduce.paper002 import budget, figures, measurements, report, runs, table
from experiments.reproduce.paper002.runs import Run
from experiments.reproduce.paper002.table import FIGURES, Line
from tests.cases import CHECKOUT
from tests.cases import reproduce as cases
from tests.cases.reproduce import RANKS, SEVERAL, SKETCH, SKETCHED

pytestmark = pytest.mark.usefixtures("quick_compilation")

PAPERS = ("002/fig1", "002/fig2", "002/fig3", "002/fig4")
MODULES = (table, runs, figures, measurements, report)
REGULAR = SKETCHED._replace(storage="regular")


@pytest.fixture(scope="module", autouse=True)
def small():
    """Everything at a size of seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            for name, value in SKETCH.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield


def ratings(seed=3):
    return cases.ratings("ml-1m", seed)


@pytest.fixture(scope="module")
def data():
    return runs.Data(ratings())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


def figure(name, data, store, seeds=(0,)):
    return figures.run(FIGURES[name], Bench(data, store, seeds, lambda text: None))


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
        two = runs.Data(cases.ratings("ml-1m"), num_devices=2)
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
    runs.measure([REGULAR], runs.Data(ratings(seed=4)), tmp_path, told.append)
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


def values(outcome, series, axis):
    return {row.x: row.value for row in outcome.rows if (row.series, row.axis) == (series, axis)}


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
    return cases.rating_file(folder, ratings())


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
