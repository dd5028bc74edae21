"""Sound beside published: equal prices, held-out ratings that stay unseen, errors along a run,
controls, verdicts.
"""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest

from accounting.gaussian import epsilon_exact, rho
from dpmf_jax.data import splits
from dpmf_jax.models import metrics
from dpmf_jax.noise import keys
from dpmf_jax.training import controls
from experiments.reproduce import page as shared
from experiments.reproduce.paper001 import (
    claims,
    figures,
    page,
    pictures,
    plans,
    report,
    variants,
)
from experiments.reproduce.paper001 import runs as store
from experiments.reproduce.paper001.figures import FIGURES, NON_PRIVATE, Request
from experiments.reproduce.paper001.programs import work_of
from experiments.reproduce.paper001.runs import Curve
from tests.cases import reproduce as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")


def planted(run, level):
    """Ends at level(run), and is lowest at step 100, by 0.002."""
    tests = {
        steps: level(run) + 1e-3 * (abs(steps - 100) / run.num_steps - 2) for steps in run.tests
    }
    tests[run.num_steps] = level(run)
    training = 0.5 + 1e-5 * np.arange(run.num_steps)  # tells the step
    return Curve(tuple(training**2), ("commit",), ("device",), 2.0, tests)


def summary_of(name, level, ratings, **asked):
    figure = FIGURES[name]
    planned = work_of(figure, Request(**{"beside": "auto", "compared": False} | asked), ratings)
    outcome = planned.result({run: planted(run, level) for run in planned.runs})
    return report.summary(figure, outcome, command=f"dpmf reproduce {name}", compared=False)


def claims_of(judged, stored, **rest):
    sentence = page.held_out_sentence(stored)
    return shared.claims_summary(figures.CATALOGUE, judged, stored, beside=sentence, **rest)


def write_docs(record, stored, folder):
    text = page.page(record, stored)
    return shared.write_docs(
        figures.CATALOGUE, record, stored, folder, page=text, files=report.files
    )


SOME = {
    "001/fig1": {"series": ("0.15", "0.90", NON_PRIVATE)},
    "001/fig4": {"series": ("0.15", "0.90")},
}
SOME |= {"001/fig7": {"series": ("0.20", "0.90"), "ranks": (4, 20)}}


@pytest.mark.seconds
@pytest.mark.parametrize("name", SOME)
def test_controls_are_what_they_say_and_cost_what_the_runs_cost(name, tiny):
    found = summary_of(name, lambda run: 1.0, tiny, **SOME[name], seeds=(3,))
    train, test = splits.random(tiny, fraction=store.HELD_OUT, seed=store.SPLIT_SEED)
    rows = found["beside"]["rows"]
    simple = [row for row in rows if row["kind"] == "control"]
    for variant, model in (
        ("item-means", controls.item_means),
        ("global-mean", controls.global_mean),
    ):
        values = {row["axis"]: row["value"] for row in simple if row["variant"] == variant}
        expected = {
            "rmse": metrics.rmse(model(tiny), tiny),
            "rmse_train": metrics.rmse(model(train), train),
            "rmse_test": metrics.rmse(model(train), test),
        }
        assert values == pytest.approx(expected)
    priced = [row for row in simple if row["variant"] == "priced-item-means"]
    verdicts = {
        (one["series"], one["x"], one["variant"]): one for one in found["beside"]["verdicts"]
    }
    for (series, x, variant), one in verdicts.items():
        if variant == NON_PRIVATE:
            assert (one["control"], one["epsilon_exact"]) == ("item-means", None)
            continue
        spent = rho(plans_z(series), one["steps"])
        assert one["epsilon_exact"] == pytest.approx(
            epsilon_exact(spent, plans.SETTINGS["delta"]), rel=1e-6
        )
        model = controls.noisy_item_means(train, keys.from_seed(3), rho=spent).factors
        assert one["control_rmse_test"] == pytest.approx(metrics.rmse(model, test))
        here = [
            r
            for r in priced
            if r["series"] == series and r["part"] != "all" and x in (None, r["x"])
        ]
        assert {row["axis"] for row in here} == {"rmse_train", "rmse_test"}
        assert all(f"{one['steps']} steps at ε_i = {series}" in row["note"] for row in here)
    (smallest,) = [row for row in priced if row["part"] == "all"]
    assert smallest["series"] == SOME[name]["series"][0]
    assert all(row["paper"] is None and row["result"] == "informative" for row in rows)
    assert {row["part"] for row in rows} == {"all", "held-out"}


def plans_z(series):
    from accounting.gaussian import noise_multiplier_from_step

    return noise_multiplier_from_step(float(series), plans.DELTA_STEP)


@pytest.mark.seconds
def test_verdicts_both_ways_and_in_words(tiny):
    """The published runs are far below the controls, the sound ones far above; and the other way
    round.
    """
    good, bad = (lambda run: 0.1), (lambda run: 9.0)
    for low, beaten in (
        ("published", (2, 0, 0)),
        ("joint-noise", (0, 2, 0)),
        ("public-items", (0, 0, 2)),
        ("", (0, 0, 0)),
    ):
        level = lambda run, low=low: (good if run.variant == low else bad)(run)  # noqa: E731
        found = summary_of("001/fig4", level, tiny, **SOME["001/fig4"])
        verdicts = found["beside"]["verdicts"]
        assert len(verdicts) == 2 * 3 + 1
        for one in verdicts:
            assert one["verdict"] == ("beats" if one["variant"] == low else "DOES NOT BEAT")
            assert (one["rmse_test"] < one["control_rmse_test"]) == (one["verdict"] == "beats")
        said = found["beside"]["sentence"]
        assert "(1 seed each), at 2 private settings" in said
        if low:
            expected = (
                f"at {beaten[1]} by joint noise, at {beaten[2]} by public items, and at {beaten[0]}"
                " by the mechanism"
            )
            assert expected in said
            assert "claimed and not proved" in said
        else:
            assert "beaten by no private model" in said
        assert "in 0 of 1 runs" in said
        text = report.page(FIGURES["001/fig4"], found, plot=None)
        assert text.count("| DOES NOT BEAT |") == sum(one["verdict"] != "beats" for one in verdicts)
        for one in verdicts:
            assert one["headline"] in text
        assert said in text
        assert (
            "Neighbours, joint noise, public items: two data sets with the same rated pairs" in text
        )
        assert "seed 0;" in text


def test_a_tie_and_what_is_no_number_do_not_beat(tiny):
    found = summary_of("001/fig4", lambda run: 1.0, tiny, **SOME["001/fig4"])
    control = found["beside"]["verdicts"][0]["control_rmse_test"]
    for level in (control, float("nan")):
        found = summary_of("001/fig4", lambda run, level=level: level, tiny, **SOME["001/fig4"])
        assert found["beside"]["verdicts"][0]["verdict"] == "DOES NOT BEAT"


def test_the_mean_over_seeds_decides_and_the_lowest_along_the_way_is_told(tiny):
    level = lambda run: 0.1 + 9 * (run.seed == 1)  # noqa: E731
    found = summary_of("001/fig4", level, tiny, beside="all", seeds=(0, 1), **SOME["001/fig4"])
    first = found["beside"]["verdicts"][0]
    assert first["rmse_test"] == pytest.approx(4.6)
    assert first["verdict"] == "DOES NOT BEAT"
    assert "2 seeds each" in found["beside"]["sentence"]
    assert (first["lowest_step"], first["lowest_rmse_test"]) == (100, pytest.approx(4.6 - 0.002))


def test_curves_have_rows_along_the_way(tiny):
    found = summary_of("001/fig1", lambda run: 1.0, tiny, **SOME["001/fig1"])
    rows = [
        r for r in found["beside"]["rows"] if (r["series"], r["variant"]) == ("0.15", "joint-noise")
    ]
    ends = [row for row in rows if row["kind"] == "end"]
    assert [(row["axis"], row["x"], row["num_steps"]) for row in ends] == [
        ("rmse_train", 791, 791),
        ("rmse_test", 791, 791),
    ]
    along = [row for row in rows if row["kind"] == "along"]
    assert len(along) <= 2 * variants.ALONG
    assert {row["x"] % 50 for row in along} == {0}
    for row in rows:  # the training error before the last update, as the paper's
        if row["axis"] == "rmse_train":
            assert row["value"] == pytest.approx(0.5 + 1e-5 * min(row["x"], 790), abs=1e-9)
    assert found["seconds"] == 2.0 * len(
        work_of(FIGURES["001/fig1"], Request(beside="auto", **SOME["001/fig1"]), tiny).runs
    )


@pytest.mark.one_case
@pytest.mark.parametrize("name", SOME)
def test_tables_and_pictures_have_what_stands_beside(name, tiny):
    found = summary_of(name, lambda run: 1.0, tiny, **SOME[name])
    lines = list(csv.DictReader(io.StringIO(report.table(found))))
    held = [row for row in lines if row["part"] == "held-out"]
    assert {row["variant"] for row in held} == {
        *cases.VARIANTS,
        "priced-item-means",
        "item-means",
        "global-mean",
    }
    for row in held:
        sound = row["variant"] in ("joint-noise", "public-items")
        assert ("proved ε" in row["guarantee"]) == (sound or row["variant"] == "priced-item-means")
        assert row["residual_clip"] == ("1.0" if sound else "")
        assert row["center"] == {
            "joint-noise": "3.0",
            "public-items": "noisy item means, 0.1 of ρ",
        }.get(row["variant"], "item" if row["variant"] in ("published", NON_PRIVATE) else "")
        assert row["tau"] == {"published": "5.0", NON_PRIVATE: "5.0"}.get(
            row["variant"], "4.0" if "ε" in row["guarantee"] else ""
        )
    drawn = pictures.svgs(FIGURES[name], found)
    assert drawn == pictures.svgs(FIGURES[name], json.loads(json.dumps(found)))
    main, held_out = drawn[".svg"], drawn[pictures.HELD_OUT]
    for words in (
        ", 1 seed",
        "as published",
        "joint noise",
        "public items",
        "without privacy",
        "global mean, not private",
    ):
        assert words in held_out
    assert "priced item means, ε = " in main
    assert "global mean, not private" in main
    assert len(held_out) < 120_000


@pytest.mark.seconds
def test_files_and_the_page(tiny, tmp_path):
    stored = {}
    for name in SOME:
        stored[name] = summary_of(name, lambda run: 1.0, tiny, **SOME[name])
        texts = report.files(FIGURES[name], stored[name])
        written = shared.write(FIGURES[name], stored[name], tmp_path / "out", texts)
        assert {path.name for path in written} >= {
            f"{FIGURES[name].stem}{end}" for end in (".svg", "-held-out.svg")
        }
    stored["001/fig10"] = summary_of("001/fig10", lambda run: 1.0, tiny, **SOME["001/fig7"])
    audit = {"data": "tiny", "steps": 9, "pairs": 3, "seed": 0, "findings": {}}
    rest = {"command": "dpmf", "commit": "c0ffee", "device": "cpu", "audit": audit}
    summary = claims_of(claims.judge(claims.Evidence(stored, {})), stored, **rest)
    text = page.page(summary, stored)
    assert summary["beside"] in text.splitlines()[4]
    assert (
        "at 6 private settings" in summary["beside"]
    )  # two over steps, and over ε_i the same; four over n
    sound = text.split("## Sound beside published")[1].split("## Statements")[0]
    assert sound.count("The runs are those of a figure above.") == 2
    assert "### Figure 10, held out" in sound
    other = summary_of(
        "001/fig4",
        lambda run: 1.0,
        dataclasses.replace(cases.generated(seed=4), name="other"),
        **SOME["001/fig4"],
    )
    both = claims_of([], stored | {"001/fig6": other}, **rest)["beside"]
    assert both == f"{summary['beside']} {other['beside']['sentence']}"
    files = {path.name for path in write_docs(summary, stored, tmp_path / "docs")}
    assert {f"001-fig{number}-held-out.svg" for number in (1, 4, 7, 10)} < files
    needed = work_of(FIGURES["001/fig4"], Request(beside="auto", **SOME["001/fig4"]), tiny).runs
    assert f"{2.0 * len(needed):.1f} s" in text

    none = {
        name: summary_of(name, lambda run: 1.0, tiny, **SOME[name] | {"beside": "none"})
        for name in SOME
    }
    write_docs(claims_of([], none, **rest), none, tmp_path / "docs")
    assert not list((tmp_path / "docs").rglob("*held-out*"))
    old = {
        name: {key: one[key] for key in one if key not in ("beside", "seconds")}
        for name, one in none.items()
    }
    text = page.page(claims_of([], old, **rest), old)
    assert "No run on held-out ratings is stored" in text
    assert "priced item means, ε" not in pictures.svgs(FIGURES["001/fig4"], old["001/fig4"])[".svg"]
    assert len(report.table(old["001/fig4"]).splitlines()) == 1 + len(old["001/fig4"]["rows"])


def test_a_picture_that_is_no_longer_drawn_goes(tiny, tmp_path):
    figure = FIGURES["001/fig4"]
    for asked in ({}, {"beside": "none"}):
        found = summary_of(figure.name, lambda run: 1.0, tiny, **SOME[figure.name], **asked)
        shared.write(figure, found, tmp_path, report.files(figure, found))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".json", ".md", ".svg"]
    assert "--beside none" in (tmp_path / "001-fig4.md").read_text()


def test_axes_have_names():
    assert {"rmse_train", "rmse_test"} <= set(figures.AXES)
