"""Sound beside published: equal prices, held-out ratings that stay unseen, errors along a run,
controls, verdicts.
"""

import csv
import dataclasses
import io
import json

import jax
import numpy as np
import pytest

from accounting.gaussian import epsilon_exact, rho
from dpmf_jax import layout, protocol
from dpmf_jax.data import splits
from dpmf_jax.devices import keys
from dpmf_jax.models import metrics
from dpmf_jax.training import controls, sweep
from experiments.reproduce import page as shared
from experiments.reproduce.paper001 import (
    beside,
    claims,
    figures,
    page,
    pictures,
    plans,
    report,
    training,
    work,
)
from experiments.reproduce.paper001 import runs as store
from experiments.reproduce.paper001.figures import FIGURES, NON_PRIVATE, Request
from experiments.reproduce.paper001.programs import work_of
from experiments.reproduce.paper001.runs import Curve, Run
from experiments.reproduce.paper001.training import train_all
from tests.cases import reproduce as cases

pytestmark = pytest.mark.usefixtures("quick_compilation")

DELTA = plans.SETTINGS["delta"]
GOLDEN = "published-rank20-eps0.15-mu0.0005-seed0-21c6cde1"  # stored runs go by it
VARIANTS = (*plans.BESIDE, NON_PRIVATE)


@pytest.fixture(scope="module")
def tiny():
    return cases.tiny()


@pytest.fixture
def every_five(monkeypatch):
    for module in (store, training):
        monkeypatch.setattr(module, "TEST_STEPS", 5)


def beside_runs(
    ratings, variants=VARIANTS, series=("0.90",), steps=13, rank=3, seed=0
) -> list[Run]:
    rate = plans.SETTINGS["learning_rate"]
    return [
        run
        for variant in variants
        for name in ((NON_PRIVATE,) if variant == NON_PRIVATE else series)
        for run in work.runs_of(
            cases.FIGURE,
            plans.Setting(name, None, rank, rate, steps, (seed,), beside=variant),
            ratings.rating_range,
        )
    ]


@pytest.mark.parametrize("name", ["001/fig1", "001/fig3", "001/fig7"])
def test_variants_cost_what_the_published_run_costs(name):
    figure, low_high = FIGURES[name], (1.0, 10.0) if name == "001/fig3" else (1.0, 5.0)
    plan = plans.plan(figure, Request(beside="auto", ranks=(20,) if name == "001/fig7" else None))
    for setting in plan.beside:
        if setting.series == NON_PRIVATE:
            continue
        (run, *_), steps = work.runs_of(figure, setting, low_high), setting.num_steps
        paper, *_ = work.runs_of(figure, setting._replace(beside=None), low_high)
        assert run.num_steps == paper.num_steps == steps
        assert run.guarantee(steps).delta == paper.guarantee(steps).delta == DELTA
        price, published = (
            epsilon_exact(
                sum(loss.num_steps / loss.noise_multiplier**2 / 2 for loss in guarantee.losses),
                DELTA,
            )
            for guarantee in (run.guarantee(steps), paper.guarantee(steps))
        )
        assert price <= published * (1 + 1e-14), setting
        assert price == pytest.approx(published, rel=1e-6)
        assert run.guarantee(steps).accountants["exact"] == pytest.approx(price, rel=1e-9)


def test_what_is_priced_is_what_runs(tiny):
    """The noise of every phase over its sensitivity is the multiplier in the guarantee; the means
    take their share.
    """
    for run in beside_runs(tiny, plans.BESIDE, steps=40):
        earlier, mechanism = run.phases
        parts = [phase.guarantee(steps).losses[0] for phase, steps in earlier]
        losses = [*parts, mechanism.guarantee(40).losses[0]]
        assert run.guarantee(40).rho == pytest.approx(
            sum(rho(one.noise_multiplier, one.num_steps) for one in losses)
        )
        assert run.guarantee(40).seeded
        if run.variant == "public-items":
            assert rho(losses[0].noise_multiplier, 1) == pytest.approx(
                0.1 * run.guarantee(40).rho, rel=1e-6
            )
            assert run.guarantee(40).status == "proved for real-number noise"


def test_the_sound_ones_are_sound_and_the_rest_is_the_paper_s(tiny):
    published, joint, public, none = (run.config for run in beside_runs(tiny))
    assert (published.center, published.tau, published.residual_clip) == ("item", 5.0, None)
    for sound in (joint, public):
        assert (sound.center, sound.span, sound.residual_clip) == (3.0, 4.0, 1.0)
    for one in (joint, public, none):
        for name in ("rank", "learning_rate", "regularization", "clip_norm", "delta", "relation"):
            assert getattr(one, name) == getattr(published, name)
    assert none.noise_multiplier is None
    statuses = [run.guarantee(9).status for run in beside_runs(tiny)]
    assert statuses == [
        "claimed",
        "proved for real-number noise",
        "proved for real-number noise",
        "none",
    ]


def counted(name, **asked):
    plan = plans.plan(FIGURES[name], Request(**asked))
    return plan, {(s.rank, s.series, s.beside): (s.num_steps, s.seeds) for s in plan.beside}


def test_auto_trains_little_on_a_cpu_and_everything_at_full_scale():
    plan, made = counted("001/fig1", beside="auto")
    assert len(made) == 6 * 3 + 1
    assert made[20, "0.15", "joint-noise"] == (791, (0,))
    assert made[20, NON_PRIVATE, NON_PRIVATE] == (2489, (0,))  # the longest private
    assert plan.not_beside == ""
    assert {seeds for _, seeds in counted("001/fig4", beside="auto", scale="full")[1].values()} == {
        (0, 1, 2)
    }
    small, made = counted("001/fig7", beside="auto")
    assert {rank for rank, _, _ in made} == {4, 12, 20}
    assert len(made) == 3 * (5 * 3 + 1)
    assert "rank 44, 60, 96, 128" in small.not_beside
    every, made = counted("001/fig7", beside="all")
    assert {rank: seeds for (rank, _, _), (_, seeds) in made.items()} == {
        **dict.fromkeys((4, 12, 20, 44, 60), (0, 1, 2)),
        **dict.fromkeys((96, 128), (0,)),
    }
    assert every.not_beside == ""
    assert len(counted("001/fig7", beside="auto", scale="full")[1]) == 11 * 16
    assert counted("001/fig10", beside="auto")[1] == counted("001/fig7", beside="auto")[1]
    assert {seeds for _, seeds in counted("001/fig1", beside="auto", seeds=(7, 8))[1].values()} == {
        (7,)
    }


def test_what_is_not_trained_beside_is_said():
    for scale in ("small", "full"):
        plan, made = counted("001/fig19", beside="all", scale=scale)
        assert made == {}
        assert "not private" in plan.not_beside
    plan, made = counted("001/fig1", beside="none")
    assert made == {}
    assert "--beside none" in plan.not_beside
    assert counted("001/fig16", beside="all")[0].not_beside == ""
    assert counted("001/fig1", beside="all", series=(NON_PRIVATE,))[1] == {}


def test_the_runs_of_the_paper_keep_their_names_and_public_items_have_their_steps(tiny):
    setting = plans.plan(cases.FIGURE, Request()).settings[0]
    run, *_ = work.runs_of(cases.FIGURE, setting, (1.0, 5.0))
    assert run.name == GOLDEN
    assert set(run.agreed) == {"variant", "config", "seed", "part"}
    short, long = (beside_runs(tiny, ("public-items",), steps=steps)[0] for steps in (13, 14))
    assert short.name != long.name
    assert "steps13" in short.name
    for variant in ("published", "joint-noise", NON_PRIVATE):
        names = {beside_runs(tiny, (variant,), steps=steps)[0].name for steps in (13, 14)}
        assert len(names) == 1


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


@pytest.mark.parametrize("chunk_steps", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_the_errors_along_a_run_are_those_of_a_model_trained_so_far(
    tiny, tmp_path, every_five, chunk_steps
):
    runs = beside_runs(tiny)
    curves = train_all(runs, tiny, tmp_path, chunk_steps=chunk_steps)
    for run in runs:
        assert list(curves[run].test) == [5, 10, 13]
        expected = by_hand(run, tiny)
        for steps, error in curves[run].test.items():
            assert error == pytest.approx(expected[steps], rel=1e-5), (run.variant, steps)
        assert curves[run].test_rmse == curves[run].test[13]
        assert len(curves[run].loss) == 13


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
    runs = beside_runs(tiny)
    one, two = train_all(runs, tiny, tmp_path / "one"), train_all(runs, other, tmp_path / "two")
    for run in runs:
        assert one[run].loss == two[run].loss
        assert all(one[run].test[steps] != two[run].test[steps] for steps in one[run].test)


def test_variants_share_programs_whatever_their_noise_and_steps(tiny, tmp_path):
    series = ("0.15", "0.50", "0.90")
    runs = [run for steps in (13, 17) for run in beside_runs(tiny, series=series, steps=steps)]
    sweep.train_many.clear_cache()
    train_all(runs, tiny, tmp_path)
    assert sweep.train_many._cache_size() == len(VARIANTS)


@pytest.mark.parametrize("after", [1, 2, 4, 5])
def test_ctrl_c_keeps_what_was_measured(tiny, tmp_path, every_five, after):
    runs = beside_runs(tiny, ("published", "public-items"))
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
    (run,) = beside_runs(tiny, ("joint-noise",))
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
    short, long = (beside_runs(tiny, ("joint-noise",), steps=steps)[0] for steps in (8, 22))
    train_all([short], tiny, tmp_path / "cut")
    done = []
    cut = train_all([long], tiny, tmp_path / "cut", report=lambda now: done.append(now.done))[long]
    assert done == [10, 15, 20, 22]
    whole = train_all([short, long], tiny, tmp_path / "whole")
    assert list(cut.test) == [5, 10, 15, 20, 22]
    assert (cut.loss, dict(cut.test)) == (whole[long].loss, dict(whole[long].test))
    assert list(whole[short].test) == [5, 8]


def test_fewer_steps_than_measured_and_the_longer_run_again(tiny, tmp_path, every_five):
    short, long = (beside_runs(tiny, ("published",), steps=steps)[0] for steps in (8, 22))
    both = train_all([short, long], tiny, tmp_path / "both")
    train_all([long], tiny, tmp_path / "one")
    assert dict(train_all([short], tiny, tmp_path / "one")[short].test) == dict(both[short].test)
    again = train_all([long], tiny, tmp_path / "one")[long]
    assert (again.loss, dict(again.test)) == (both[long].loss, dict(both[long].test))


def test_a_run_that_was_measured_at_its_end_alone_is_measured_along_the_way(
    tiny, tmp_path, every_five
):
    (run,) = beside_runs(tiny, ("joint-noise",))
    first = train_all([run], tiny, tmp_path)[run]
    path = tmp_path / "private" / run.name / "run.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"test_rmse": {"13": stored["test_rmse"]["13"]}}))
    again = train_all([run], tiny, tmp_path)[run]
    assert (again.loss, dict(again.test)) == (first.loss, dict(first.test))


def test_no_rule_ends_a_run_that_is_measured(tiny, tmp_path):
    (run,) = beside_runs(tiny, (NON_PRIVATE,))
    with pytest.raises(ValueError, match="a rule ends runs on all ratings only"):
        train_all([run._replace(rule="small fall")], tiny, tmp_path)


def test_seconds_are_those_of_the_steps_that_are_asked_for(tiny, tmp_path):
    (long,) = cases.small_runs(tiny, series=("0.15",), seeds=(0,), steps=40)
    whole = train_all([long], tiny, tmp_path)[long]
    part = train_all([long._replace(num_steps=10)], tiny, tmp_path)
    assert whole.seconds > 0
    assert next(iter(part.values())).seconds == pytest.approx(whole.seconds / 4)


def planted(run, level):
    """Ends at level(run), and is lowest at step 100, by 0.002."""
    tests = {
        steps: level(run) + 1e-3 * (abs(steps - 100) / run.num_steps - 2) for steps in run.tests
    }
    tests[run.num_steps] = level(run)
    training = 0.5 + 1e-5 * np.arange(run.num_steps)  # tells the step
    return Curve(tuple(training**2), ("commit",), ("device",), 2.0, tests)


def told(name, level, ratings, **asked):
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


@pytest.mark.parametrize("name", SOME)
def test_controls_are_what_they_say_and_cost_what_the_runs_cost(name, tiny):
    found = told(name, lambda run: 1.0, tiny, **SOME[name], seeds=(3,))
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
        assert one["epsilon_exact"] == pytest.approx(epsilon_exact(spent, DELTA), rel=1e-6)
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
        found = told("001/fig4", level, tiny, **SOME["001/fig4"])
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
    found = told("001/fig4", lambda run: 1.0, tiny, **SOME["001/fig4"])
    control = found["beside"]["verdicts"][0]["control_rmse_test"]
    for level in (control, float("nan")):
        found = told("001/fig4", lambda run, level=level: level, tiny, **SOME["001/fig4"])
        assert found["beside"]["verdicts"][0]["verdict"] == "DOES NOT BEAT"


def test_the_mean_over_seeds_decides_and_the_lowest_along_the_way_is_told(tiny):
    level = lambda run: 0.1 + 9 * (run.seed == 1)  # noqa: E731
    found = told("001/fig4", level, tiny, beside="all", seeds=(0, 1), **SOME["001/fig4"])
    first = found["beside"]["verdicts"][0]
    assert first["rmse_test"] == pytest.approx(4.6)
    assert first["verdict"] == "DOES NOT BEAT"
    assert "2 seeds each" in found["beside"]["sentence"]
    assert (first["lowest_step"], first["lowest_rmse_test"]) == (100, pytest.approx(4.6 - 0.002))


def test_curves_have_rows_along_the_way(tiny):
    found = told("001/fig1", lambda run: 1.0, tiny, **SOME["001/fig1"])
    rows = [
        r for r in found["beside"]["rows"] if (r["series"], r["variant"]) == ("0.15", "joint-noise")
    ]
    ends = [row for row in rows if row["kind"] == "end"]
    assert [(row["axis"], row["x"], row["num_steps"]) for row in ends] == [
        ("rmse_train", 791, 791),
        ("rmse_test", 791, 791),
    ]
    along = [row for row in rows if row["kind"] == "along"]
    assert len(along) <= 2 * beside.ALONG
    assert {row["x"] % 50 for row in along} == {0}
    for row in rows:  # the training error before the last update, as the paper's
        if row["axis"] == "rmse_train":
            assert row["value"] == pytest.approx(0.5 + 1e-5 * min(row["x"], 790), abs=1e-9)
    assert found["seconds"] == 2.0 * len(
        work_of(FIGURES["001/fig1"], Request(beside="auto", **SOME["001/fig1"]), tiny).runs
    )


@pytest.mark.parametrize("name", SOME)
def test_tables_and_pictures_have_what_stands_beside(name, tiny):
    found = told(name, lambda run: 1.0, tiny, **SOME[name])
    lines = list(csv.DictReader(io.StringIO(report.table(found))))
    held = [row for row in lines if row["part"] == "held-out"]
    assert {row["variant"] for row in held} == {
        *VARIANTS,
        "priced-item-means",
        "item-means",
        "global-mean",
    }
    for row in held:
        sound = row["variant"] in ("joint-noise", "public-items")
        assert ("proved for real-number noise, ε" in row["guarantee"]) == (
            sound or row["variant"] == "priced-item-means"
        )
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


def test_files_and_the_page(tiny, tmp_path):
    stored = {}
    for name in SOME:
        stored[name] = told(name, lambda run: 1.0, tiny, **SOME[name])
        texts = report.files(FIGURES[name], stored[name])
        written = shared.write(FIGURES[name], stored[name], tmp_path / "out", texts)
        assert {path.name for path in written} >= {
            f"{FIGURES[name].stem}{end}" for end in (".svg", "-held-out.svg")
        }
    stored["001/fig10"] = told("001/fig10", lambda run: 1.0, tiny, **SOME["001/fig7"])
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
    other = told(
        "001/fig4",
        lambda run: 1.0,
        dataclasses.replace(cases.tiny(seed=4), name="other"),
        **SOME["001/fig4"],
    )
    both = claims_of([], stored | {"001/fig6": other}, **rest)["beside"]
    assert both == f"{summary['beside']} {other['beside']['sentence']}"
    files = {path.name for path in write_docs(summary, stored, tmp_path / "docs")}
    assert {f"001-fig{number}-held-out.svg" for number in (1, 4, 7, 10)} < files
    needed = work_of(FIGURES["001/fig4"], Request(beside="auto", **SOME["001/fig4"]), tiny).runs
    assert f"{2.0 * len(needed):.1f} s" in text

    none = {
        name: told(name, lambda run: 1.0, tiny, **SOME[name] | {"beside": "none"}) for name in SOME
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
        found = told(figure.name, lambda run: 1.0, tiny, **SOME[figure.name], **asked)
        shared.write(figure, found, tmp_path, report.files(figure, found))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".json", ".md", ".svg"]
    assert "--beside none" in (tmp_path / "001-fig4.md").read_text()


def test_axes_have_names():
    assert {"rmse_train", "rmse_test"} <= set(figures.AXES)
