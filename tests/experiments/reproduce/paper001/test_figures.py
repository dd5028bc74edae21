"""Reproductions: which points decide, the tolerance, exit 6, what is written, points that ship."""

import numpy as np
import pytest

from dpmf_jax.errors import UsageError
from experiments.reproduce import comparison
from experiments.reproduce.paper001 import figures, plans, work
from experiments.reproduce.paper001.figures import Request
from tests.cases.reproduce import FIGURE, SERIES, command_line

SHIPPED = [*range(1, 13), *range(16, 19)]


@pytest.mark.parametrize("number", SHIPPED)
def test_points_ship_and_parse(number):
    found = figures.points(f"fig{number:02}.csv")
    assert len(found) > 5
    assert all(np.isfinite([p.x, p.y]).all() and p.y > 0 and p.x > -0.01 for p in found)
    assert {p.kind for p in found} <= {"marker", "line_start", "line_vertex", "line_end"}
    assert {p.axis for p in found} <= {"rmse", "overall_epsilon", "ms_per_iteration"}


def test_the_last_steps_of_figure_1_are_the_paper_s():
    settings = plans.plan(FIGURE, Request()).settings
    steps = {setting.series: setting.num_steps for setting in settings}
    assert steps == dict(zip(SERIES, (791, 1127, 1265, 2109, 2240, 2489, 2491), strict=True))
    assert {(setting.rank, setting.learning_rate, setting.seeds) for setting in settings} == {
        (20, 5e-4, (0, 1, 2))
    }
    assert (len(plans.work(settings)), sum(plans.work(settings).values())) == (21, 37_536)


def test_the_steps_of_figure_1_have_the_price_of_figure_4():
    """Equation (9) at our J and σ gives the overall ε that the paper plots, to what can be read
    from its plot.
    """
    plotted = {p.series: p.y for p in figures.points("fig04.csv") if p.axis == "overall_epsilon"}
    for setting in plans.plan(FIGURE, Request(series=SERIES[:-1], seeds=(0,))).settings:
        (run,) = work.runs_of(FIGURE, setting, (1.0, 5.0))
        ours = run.mechanism.guarantee(run.num_steps).accountants["closed_form"]
        assert ours == pytest.approx(plotted[run.series], abs=0.005)
        assert ours == pytest.approx(work.overall_epsilon(run.series, run.num_steps), rel=1e-6)


def test_series_are_found_however_they_are_spelled():
    assert FIGURE.series == SERIES
    assert figures.choose_series(SERIES, None) == SERIES
    assert figures.choose_series(SERIES, ("non-private", "0.5", ".15", "0.50")) == (
        "0.15",
        "0.50",
        "non-private",
    )
    for wrong in ("0.4", "private", "nan", ""):
        with pytest.raises(UsageError, match="no series"):
            figures.choose_series(SERIES, (wrong,))


def test_figure_1_is_decided_at_31_points():
    checked = [p for p in figures.points("fig01.csv") if comparison.is_checked(p)]
    assert len(checked) == 31
    assert {p.series for p in checked} == set(SERIES)


@pytest.mark.slow
@pytest.mark.data
def test_figures_1_and_4_at_their_noisiest(data_dir, tmp_path):
    """ε_i = 0.15, one seed: 791 steps on MovieLens-1M, inside the tolerance. The whole figures:
    dpmf reproduce.
    """
    words = (
        "--series",
        "0.15",
        "--seeds",
        "0",
        "--data-dir",
        str(data_dir),
        "--out",
        str(tmp_path),
    )
    words = (*words, "--beside", "none")
    assert command_line("001/fig1", "001/fig4", *words) == 0


@pytest.mark.slow
@pytest.mark.data
def test_figures_7_and_10_at_rank_4(data_dir, tmp_path):
    """One private and the non-private series: 1,128 and about 960 steps."""
    words = (
        "--series",
        "0.50",
        "non-private",
        "--ranks",
        "4",
        "--seeds",
        "0",
        "--data-dir",
        str(data_dir),
    )
    words = (*words, "--beside", "none")
    assert command_line("001/fig7", *words, "--out", str(tmp_path)) == 0
    assert command_line("001/fig10", "--series", "0.5", *words[3:], "--out", str(tmp_path)) == 0
