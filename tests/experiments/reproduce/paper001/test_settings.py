"""Figures over ε_i, n and μ: which J, read at which step, under which tolerance; stopping rules;
scales.

The curves are made up, so that the value at a step tells which step it was; nothing is trained.
"""

import math

import numpy as np
import pytest

from accounting.gaussian import epsilon_closed_form, noise_multiplier_from_step, rho
from experiments.reproduce import comparison
from experiments.reproduce.paper001 import figures, pictures, plans, report, settings
from experiments.reproduce.paper001.figures import FIGURES, Request
from experiments.reproduce.paper001.programs import work_of
from experiments.reproduce.paper001.runs import Curve
from experiments.reproduce.paper001.work import overall_epsilon, runs_of
from experiments.reproduce.pictures import NOTICE


def rows_of(name, rmse, compared=True, **asked):
    """The rows of a figure over settings where each run has the training RMSE rmse(run)."""
    figure = FIGURES[name]
    by_setting = {
        setting: [
            Curve(tuple(rmse(run) ** 2), ("commit",), ("device",), 1.0)
            for run in runs_of(figure, setting, (1.0, 5.0))
        ]
        for setting in plans.plan(figure, Request(compared=compared, **asked)).settings
    }
    return settings.rows_of(figure, by_setting, compared)


def result(figure, tiny, rmse, compared=True, **asked):
    """All of a figure where each run has the training RMSE rmse(run)."""
    work = work_of(FIGURES[figure], Request(compared=compared, **asked), tiny)
    curves = {run: Curve(tuple(rmse(run) ** 2), ("commit",), ("device",), 1.0) for run in work.runs}
    return work.result(curves)


def tagged(run):
    """Falls by 1e-5 a step, from 1: the value tells the step, and no rule ends the run."""
    return 1 - 1e-5 * np.arange(run.num_steps, dtype=float)


def step_of(value):
    return (1 - value) / 1e-5


def only(rows, **fields):
    (row,) = [
        row for row in rows if all(getattr(row, name) == value for name, value in fields.items())
    ]
    return row


@pytest.mark.parametrize(
    ("series", "steps"), [("0.15", 791), ("0.20", 1127), ("0.30", 1265), ("0.90", 2489)]
)
def test_figure_4_is_read_at_the_last_of_its_j_steps(tiny, series, steps):
    rows = rows_of("001/fig4", tagged)
    error = only(rows, series=series, axis="rmse")
    assert (error.num_steps, error.step, error.x) == (steps, steps - 1, float(series))
    assert step_of(error.value) == pytest.approx(steps - 1)
    price = only(rows, series=series, axis="overall_epsilon")
    z = noise_multiplier_from_step(float(series), 0.01)
    assert price.value == pytest.approx(epsilon_closed_form(rho(z, steps), 1e-5), rel=1e-12)
    assert price.result == "inside"


def test_figures_1_and_4_end_at_the_same_step(tiny):
    ends = {
        row.series: row
        for row in result("001/fig1", tiny, tagged)["rows"]
        if row.kind == "line_end"
    }
    for row in rows_of("001/fig4", tagged):
        if row.axis == "rmse":
            assert (row.step, row.value) == (ends[row.series].step, ends[row.series].value)


@pytest.mark.parametrize(
    ("series", "rank", "implied"),
    [("0.20", 4, 888.34), ("0.20", 512, 2194.86), ("0.50", 20, 2102.56), ("0.90", 60, 4069.68)],
)
def test_figure_7_has_the_j_of_figure_10(tiny, series, rank, implied):
    rows = rows_of("001/fig7", tagged, scale="full", seeds=(0,), series=(series,))
    error = only(rows, series=series, x=float(rank))
    assert (error.num_steps, error.step) == (round(implied), round(implied) - 1)
    assert step_of(error.value) == pytest.approx(round(implied) - 1)
    assert error.tolerance == comparison.TOLERANCE


def test_figure_10_is_priced_at_a_j_that_is_not_whole(tiny):
    """Every point of the paper is met, also where the whole J beside it would not be."""
    rows = [row for row in rows_of("001/fig10", tagged) if row.kind == "marker"]
    assert len(rows) == 55
    assert {row.result for row in rows} == {"inside"}
    assert all(row.tolerance == comparison.EPSILON_TOLERANCE for row in rows)
    assert all("not the training" in row.note for row in rows)
    point = only(rows, series="0.90", x=12.0)
    assert point.num_steps == 1874.24
    assert abs(overall_epsilon("0.90", 1874.24) - point.paper) < 0.001
    assert all(abs(overall_epsilon("0.90", steps) - point.paper) > 0.01 for steps in (1874, 1875))


def test_the_mean_over_seeds_is_compared(tiny):
    shift = {0: 0.004, 1: 0.0, 2: -0.0005}
    rows = rows_of("001/fig4", lambda run: tagged(run) + shift[run.seed], series=("0.15",))
    error = only(rows, axis="rmse")
    assert len(error.values) == 3
    assert error.value == pytest.approx(1 - 790e-5 + 0.0035 / 3)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("figure", "series", "x", "tolerance"),
    [
        ("001/fig4", "0.30", 0.3, 0.005),
        ("001/fig7", "0.50", 60.0, 0.005),
        ("001/fig7", "non-private", 20.0, 0.01),
    ],
)
def test_the_edges_of_the_tolerances(tiny, figure, series, x, tolerance, sign):
    paper = next(
        p.y
        for p in FIGURES[figure].plotted
        if (p.series, p.axis) == (series, "rmse") and abs(p.x - x) < 0.01
    )
    for off, verdict in ((tolerance, "inside"), (tolerance + 1e-7, "outside")):
        value = paper + sign * off
        rmse = lambda run, value=value: np.full(run.num_steps if run.rule is None else 3, value)  # noqa: E731
        rows = rows_of(figure, rmse, series=(series,), seeds=(0,))
        marked = [
            row for row in rows if row.axis == "rmse" and row.x == x and row.kind != "patience"
        ]
        assert [row.result for row in marked] == [verdict]
        assert marked[0].tolerance == tolerance


def test_a_price_that_is_off_by_more_than_its_tolerance_is_outside(tiny, monkeypatch):
    monkeypatch.setitem(plans.SETTINGS, "delta", 1.001e-5)
    rows = rows_of("001/fig10", tagged, seeds=(0,))
    assert comparison.verdict(rows) == "inside"
    monkeypatch.setitem(plans.SETTINGS, "delta", 1.1e-5)
    assert comparison.verdict(rows_of("001/fig10", tagged, seeds=(0,))) == "outside"


def test_non_private_runs_are_read_where_they_hardly_fall(tiny):
    def rmse(run):
        return np.array([1.0, 0.9, 0.8, 0.8 - 5.4e-6, 0.5])[: run.num_steps]

    rows = rows_of("001/fig7", rmse, series=("non-private",), ranks=(20,))
    row = only(rows, series="non-private")
    assert (row.step, row.kind, len(row.values)) == (3, "small fall", 3)
    assert row.value == pytest.approx(0.8 - 5.4e-6, abs=1e-12)
    assert row.tolerance == comparison.NON_PRIVATE_TOLERANCE


def test_a_run_that_nothing_ended_is_read_at_its_end_and_says_so(tiny):
    row = only(rows_of("001/fig7", tagged, series=("non-private",), ranks=(20,)))
    assert row.step == plans.MOST_STEPS - 1
    assert row.note.startswith("not stopped")


def bottomed(run):
    """Falls for 100 + 10·seed steps, then rises: patience ends it 5 steps later."""
    steps = np.arange(min(run.num_steps, 400))
    return 1 - 1e-3 * np.minimum(steps, 200 + 20 * run.seed - steps)


def test_patience_is_shown_beside_the_paper_s_j(tiny):
    full = lambda run: np.pad(bottomed(run), (0, max(run.num_steps - 400, 0)), mode="edge")  # noqa: E731
    rows = rows_of("001/fig4", full, series=("0.20",))
    error, price = (only(rows, kind="patience", axis=axis) for axis in ("rmse", "overall_epsilon"))
    assert error.step == error.num_steps == price.num_steps == np.mean([105, 115, 125])
    assert error.value == pytest.approx(np.mean([1 - 0.095, 1 - 0.105, 1 - 0.115]))
    z = noise_multiplier_from_step(0.2, 0.01)
    assert price.value == pytest.approx(
        np.mean([epsilon_closed_form(rho(z, s), 1e-5) for s in (105, 115, 125)])
    )
    assert {error.result, price.result} == {"informative"}
    assert "not private" in error.note
    on_the_curve = result("001/fig1", tiny, full, series=("0.20",))["rows"]
    assert only(on_the_curve, kind="patience", axis="rmse").x == 115


def test_patience_that_ends_some_seeds_says_how_many(tiny):
    def some(run):
        if not run.seed:
            return tagged(run)
        return np.pad(bottomed(run), (0, run.num_steps - 400), mode="edge")

    row = only(rows_of("001/fig4", some, series=("0.20",)), kind="patience", axis="rmse")
    assert len(row.values) == 2
    assert "1 of 3 seeds went on" in row.note


def test_figures_over_the_learning_rate_have_no_points_and_no_verdict(tiny):
    told = result("001/fig25", tiny, bottomed, seeds=(0,))
    rows = told["rows"]
    assert {row.x for row in rows} == {0.0003, 0.0005, 0.0007, 0.0010}
    assert {row.result for row in rows} == {"informative"}
    assert all(row.paper is None for row in rows)
    assert {row.num_steps for row in rows if row.series != "non-private"} == {105}
    assert comparison.verdict(rows) == "no points to compare"
    assert {setting["learning_rate"] for setting in told["settings"]} == set(plans.LEARNING_RATES)
    assert all(setting["steps"] <= 400 for setting in told["settings"])


def test_other_ratings_are_compared_with_nothing(tiny):
    for name in ("001/fig3", "001/fig6", "001/fig9", "001/fig12", "001/fig15"):
        asked = {"compared": False, "seeds": (0,)}
        if FIGURES[name].x_name == "iteration":
            rows = result(name, tiny, tagged, **asked)["rows"]
        else:
            rows = rows_of(name, tagged, **asked)
        assert rows
        assert all(row.paper is None and row.result == "informative" for row in rows)


def seeds_by_rank(**asked):
    plan = plans.plan(FIGURES["001/fig7"], Request(**asked))
    return {
        setting.rank: setting.seeds for setting in plan.settings if not setting.is_likely
    }, plan.left_out


def test_the_small_scale_leaves_out_what_it_says():
    three, one = (0, 1, 2), (0,)
    small = dict.fromkeys((4, 12, 20, 44, 60), three) | dict.fromkeys((96, 128), one)
    assert seeds_by_rank() == (small, (192, 256, 320, 512))
    assert seeds_by_rank(scale="full") == (dict.fromkeys(plans.RANKS, three), ())
    assert seeds_by_rank(seeds=(7,)) == (dict.fromkeys(small, (7,)), (192, 256, 320, 512))
    assert seeds_by_rank(ranks=(20, 512)) == ({20: three, 512: one}, ())


def test_a_price_needs_no_training():
    plan = plans.plan(FIGURES["001/fig10"], Request())
    assert len(plan.settings) == 55
    assert {setting.rank for setting in plan.settings if not setting.seeds} == {192, 256, 320, 512}
    assert plan.left_out == (192, 256, 320, 512)


def test_figures_share_their_runs():
    settings = {
        name: plans.plan(FIGURES[name], Request()).settings for name in figures.CATALOGUE.every
    }
    work = {name: set(plans.work(some)) for name, some in settings.items()}
    assert work["001/fig4"] < work["001/fig1"]
    assert work["001/fig10"] < work["001/fig7"] == work["001/fig13"]
    assert work["001/fig7"] & work["001/fig1"]
    assert work["001/fig22"] < work["001/fig19"] == work["001/fig25"]
    assert work["001/fig19"] & work["001/fig1"]
    everything = [setting for some in settings.values() for setting in some]
    assert plans.minutes(everything, 2) < sum(plans.minutes(some, 2) for some in settings.values())
    assert plans.minutes(everything, 4) == pytest.approx(plans.minutes(everything, 2) / 2)


def test_every_figure_of_the_table_can_be_planned():
    for figure in FIGURES.values():
        assert plans.plan(figure, Request(scale="full")).settings
        assert figure.number == int(figure.name.removeprefix("001/fig"))
        assert (
            figure.tau == {"ml-1m": 5, "netflix": 5, "anime": 10}[figure.paper_data]
        )  # what the noise is drawn with
    assert figures.CATALOGUE.every == tuple(
        f"001/fig{number}" for number in (1, 4, 7, 10, 13, 16, 19, 22, 25)
    )
    for number in (2, 5, 8, 11, 14, 17, 20, 23, 26):
        assert FIGURES[f"001/fig{number}"].paper_data == "netflix"
    for number in (3, 6, 9, 12, 15, 18, 21, 24, 27):
        assert (FIGURES[f"001/fig{number}"].paper_data, FIGURES[f"001/fig{number}"].fallback) == (
            "anime",
            "anime-5000",
        )


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["001/fig1", "001/fig4", "001/fig10", "001/fig13", "001/fig25"])
def test_pages_tables_and_plots_have_every_row(tiny, name):
    figure = FIGURES[name]
    rmse = tagged if name != "001/fig25" else bottomed
    some = {"series": figure.series[:2], "seeds": (0,)} | (
        {"ranks": (4, 20)} if figure.x_name == "n" else {}
    )
    outcome = result(name, tiny, rmse, **some)
    told = report.summary(figure, outcome, command="dpmf reproduce")
    page = report.page(figure, told, plot=None)
    lines = report.table(told).splitlines()
    assert len(lines) == 1 + len(told["rows"]) + len(told["beside"]["rows"])
    for row in told["rows"]:
        assert row["kind"] == "line_vertex" or f"{float(row['value']):.5f}" in page
    for setting in told["settings"]:
        assert setting["headline"] in page
    assert NOTICE.capitalize() in page
    drawn, again = (pictures.svgs(figure, told)[".svg"] for _ in range(2))
    assert drawn == again
    assert NOTICE in drawn
    for axis in figure.axes:
        assert figures.AXES[axis] in drawn
    simple = [row for row in told["beside"]["rows"] if row["variant"] != "item-means"]
    assert {row["variant"] for row in simple} == (
        {"priced-item-means", "global-mean"} if "rmse" in figure.axes else set()
    )


@pytest.mark.seconds
def test_times_are_kept_and_informative(tiny, tmp_path, capsys):
    work = work_of(FIGURES["001/fig16"], Request(ranks=(4,), store=tmp_path), tiny)
    assert work.runs == ()
    first = work.result({})
    assert {row.series for row in first["rows"]} == {"0.50", "non-private"}
    assert all(
        row.result == "informative" and row.value > 0 and row.num_steps == 50
        for row in first["rows"]
    )
    assert "ms per iteration" in capsys.readouterr().err
    assert work.result({})["rows"] == first["rows"]
    assert capsys.readouterr().err == ""
    assert comparison.verdict(first["rows"]) == "informative"


def test_another_rank_stands_beside_a_plotted_one_and_decides_nothing():
    """The points at rank 44 fit rank 48: shown with the same J, in no verdict, price or held-out
    run.
    """
    figure = figures.CATALOGUE.find("001/fig7")
    plan = plans.plan(figure, Request(ranks=(20, 44), beside="all"))
    likely = [setting for setting in plan.settings if setting.is_likely]
    assert [(setting.x, setting.rank, len(setting.seeds)) for setting in likely] == [
        (44.0, 48, 1)
    ] * 5
    own = {(s.series, s.x): s for s in plan.settings if not s.is_likely}
    assert all(setting.num_steps == own[setting.series, 44.0].num_steps for setting in likely)
    assert {setting.rank for setting in plan.beside} == {20, 44}
    for other in ("001/fig10", "001/fig16", "001/fig8", "001/fig9"):  # no RMSE, or other ratings
        assert not [
            s for s in plans.plan(figures.CATALOGUE.find(other), Request()).settings if s.is_likely
        ]
    curve = Curve(tuple(np.linspace(2.0, 0.5, likely[0].num_steps)), (), (), 1.0)
    (told,) = settings._rows(figure, likely[0], [curve], {("rmse", likely[0].series, 44.0): 0.7})
    assert (told.result, told.kind, told.tolerance) == ("informative", "another rank", None)
    assert told.value == pytest.approx(math.sqrt(curve.loss[-1]))
    assert "rank 48" in told.note
