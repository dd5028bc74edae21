"""Claims about paper 001: every verdict from planted rows, the page, the files; no training."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest

from dpmf_jax.errors import DataError
from experiments.reproduce import comparison
from experiments.reproduce import page as shared
from experiments.reproduce.paper001 import (
    claims,
    figures,
    measurements,
    page,
    pictures,
    plans,
    prices,
    report,
    training,
    work,
)
from experiments.reproduce.paper001 import settings as gaussian_settings
from experiments.reproduce.paper001.claims import Evidence
from experiments.reproduce.paper001.figures import FIGURES, NON_PRIVATE, Request
from experiments.reproduce.paper001.programs import work_of
from experiments.reproduce.paper001.runs import Curve
from tests.cases import reproduce as cases

RATINGS = dataclasses.replace(cases.generated(), name="ml-1m")


def curve_of(run, level, bottom):
    steps = np.arange(run.num_steps if run.rule is None else min(run.num_steps, bottom(run) + 6))
    return Curve(
        tuple((level(run) + 1e-7 * np.abs(steps - bottom(run))) ** 2), ("commit",), ("device",), 1.0
    )


def summary_of(name, level, bottom=lambda run: 50, ratings=RATINGS, **asked):
    """A figure's json where the runs end at about level(run), lowest at step bottom(run)."""
    figure = FIGURES[name]
    planned = work_of(figure, Request(**{"scale": "full", "seeds": (0,)} | asked), ratings)
    result = planned.result({run: curve_of(run, level, bottom) for run in planned.runs})
    return report.summary(figure, result, command=f"dpmf reproduce {name}")


def figures_1_and_4(level):
    return [summary_of(f"001/fig{number}", level) for number in (1, 4)]


def rows(name, level, bottom=lambda run: 50, **asked):
    """What the claims read of `summary_of`, without the prices of all settings, which take long."""
    figure = FIGURES[name]
    found = []
    for setting in plans.plan(figure, Request(**{"scale": "full", "seeds": (0,)} | asked)).settings:
        made = work.runs_of(figure, setting, RATINGS.rating_range)
        found += gaussian_settings._rows(
            figure, setting, [curve_of(run, level, bottom) for run in made], {}
        )
    every = [row._asdict() for row in found]
    return {"figure": name, "ratings": {"name": RATINGS.name}, "rows": every}


def verdicts(figures=(), findings=None):
    judged = claims.judge(Evidence({one["figure"]: one for one in figures}, findings or {}))
    return {claim.name: claim for claim in judged}


def private(run):
    return run.series != NON_PRIVATE


def epsilon_i(run):
    return float(run.series) if private(run) else 1.0


def over_epsilon(*levels):
    """Levels of the six ε_i and of the non-private run, for figures 1 and 4."""
    by_series = dict(zip((*cases.SERIES[:-1], NON_PRIVATE), levels, strict=True))
    return lambda run: by_series[run.series]


LIKE_THE_PAPER = over_epsilon(0.84, 0.807, 0.765, 0.724, 0.711, 0.706, 0.697)


@pytest.mark.seconds
def test_figures_1_and_4_like_the_paper():
    found = verdicts(figures_1_and_4(LIKE_THE_PAPER))
    for name in ("nearer", "trade-off", "not worth it"):
        assert found[name].verdict == "reproduced", found[name]
    assert found["trade-off"].numbers == {"knee": 0.5, "knee_log": 0.3}
    assert found["nearer"].numbers["step"] == 790
    assert found["nearer"].numbers["0.15"] == pytest.approx(0.143, abs=1e-3)
    assert found["strict"].verdict == "not reproduced"
    assert "62.8" in found["strict"].why


@pytest.mark.parametrize(
    ("name", "levels", "verdict"),
    [
        ("nearer", (0.84, 0.807, 0.765, 0.770, 0.711, 0.706, 0.697), "not reproduced"),
        ("nearer", (0.84, 0.807, 0.765, 0.724, 0.711, 0.706, 0.750), "not reproduced"),
        ("trade-off", (0.84, 0.708, 0.7075, 0.707, 0.7065, 0.706, 0.697), "not reproduced"),
        ("trade-off", (0.70, 0.71, 0.72, 0.73, 0.74, 0.75, 0.697), "not reproduced"),
        ("not worth it", (0.84, 0.807, 0.80, 0.79, 0.70, 0.60, 0.59), "not reproduced"),
        ("strict", (0.70, 0.70, 0.70, 0.70, 0.70, 0.70, 0.697), "reproduced"),
    ],
)
def test_figures_1_and_4_unlike_the_paper(name, levels, verdict):
    assert verdicts(figures_1_and_4(over_epsilon(*levels)))[name].verdict == verdict


def rank_level(run):
    """Falls with the rank, without privacy to nearly nothing."""
    return 0.75 / (run.config.rank / 20) ** 0.1 if private(run) else 0.7 / (run.config.rank / 20)


def same_level(run):
    return 0.6


def test_figure_7_both_ways():
    names = ("to zero", "apart", "saturation")
    like = verdicts([rows("001/fig7", rank_level)])
    assert [like[name].verdict for name in names] == ["reproduced"] * 3
    unlike = verdicts([rows("001/fig7", same_level)])
    falling = verdicts(
        [
            rows(
                "001/fig7",
                lambda run: (100 if private(run) else 2000 / run.config.rank) / run.config.rank,
            )
        ]
    )
    assert [unlike[name].verdict for name in names[:2]] == ["not reproduced"] * 2
    assert falling["saturation"].verdict == "not reproduced"


def test_figure_7_at_small_ranks_decides_only_what_it_can():
    found = verdicts([rows("001/fig7", rank_level, ranks=(20, 60))])
    assert found["to zero"].verdict == found["saturation"].verdict == "not testable here"
    assert "dpmf reproduce 001/fig7 --ranks 512" in found["to zero"].why
    assert found["apart"].verdict == "reproduced"
    assert "the largest stored rank is 60" in found["apart"].why
    assert (
        verdicts([rows("001/fig7", rank_level, ranks=(20,))])["apart"].verdict
        == "not testable here"
    )


def test_overall_epsilon_over_ranks_by_the_paper_s_points():
    found = verdicts()
    assert found["flat, by the paper's J"].verdict == "not reproduced"
    assert found["flat, by the paper's J"].numbers["0.20"] == pytest.approx(19.01448 / 15.02956 - 1)
    assert found["peak, by the paper's J"].verdict == "reproduced"
    assert found["peak, by the paper's J"].numbers["0.75 peak"] == 192


def test_the_paper_s_points_could_say_otherwise(monkeypatch):
    flat = [
        figures.Point(s, x, 5.0 + x / 1e4, "overall_epsilon", "marker", "n")
        for s in cases.SERIES
        for x in (4, 512)
    ]
    flat += [point._replace(x=200.0) for point in flat[::2]]
    monkeypatch.setattr(figures, "points", lambda file: tuple(flat))
    evidence = Evidence({}, {})
    assert measurements.flat_at_large_ranks("paper")(evidence).holds
    assert not measurements.peaks_between("paper")(evidence).holds


def test_overall_epsilon_over_ranks_by_our_j():
    def peaked(run):
        return 900 - abs(run.config.rank - 128) if epsilon_i(run) > 0.5 else 500

    like = verdicts([rows("001/fig10", same_level, peaked)])
    assert like["flat, by our J"].verdict == like["peak, by our J"].verdict == "reproduced"
    unlike = verdicts([rows("001/fig10", same_level, lambda run: 200 + run.config.rank)])
    assert unlike["flat, by our J"].verdict == unlike["peak, by our J"].verdict == "not reproduced"
    small = verdicts([rows("001/fig10", same_level, peaked, scale="small")])
    assert small["flat, by our J"].verdict == small["peak, by our J"].verdict == "not testable here"


@pytest.mark.parametrize("sign", [1, -1])
def test_figures_over_the_learning_rate_both_ways(sign):
    bottom = lambda run: 60 - sign * round(run.config.learning_rate * 2e4)  # noqa: E731
    level = lambda run: 0.6 + sign * run.config.learning_rate  # noqa: E731
    found = verdicts([rows("001/fig19", level, bottom), rows("001/fig22", level, bottom)])
    expected = "reproduced" if sign == 1 else "not reproduced"
    names = ("fewer steps", "lower ε", "higher error")
    assert {found[name].verdict for name in names} == {expected}
    assert f"{15 if sign == 1 else 0} of 15" in found["fewer steps"].why


def test_one_series_that_disagrees_is_enough():
    level = lambda run: 0.6 + run.config.learning_rate * (-1 if run.series == "0.50" else 1)  # noqa: E731
    assert verdicts([rows("001/fig19", level)])["higher error"].verdict == "not reproduced"


@pytest.mark.parametrize(
    ("slope", "ranks", "verdict"),
    [
        (0.1, plans.RANKS, "reproduced"),
        (0.001, plans.RANKS, "not reproduced"),
        (0.1, (4, 20), "not testable here"),
    ],
)
def test_times_of_an_iteration(slope, ranks, verdict):
    timed_rows = [
        comparison.row(
            series, "ms_per_iteration", "marker", float(rank), [4 + slope * rank]
        )._asdict()
        for series in ("0.50", NON_PRIVATE)
        for rank in ranks
    ]
    timed = {
        "figure": "001/fig16",
        "ratings": {"name": "ml-1m"},
        "rows": timed_rows,
        "devices": ["1 x cpu"],
    }
    claim = verdicts([timed])["time"]
    assert claim.verdict == verdict
    if verdict == "reproduced":
        assert "4.7" in claim.why  # what the paper's points give


def test_the_price_needs_no_figure(monkeypatch):
    found = verdicts()
    assert [found[name].verdict for name in ("closed form", "tight", "proportional")] == [
        "reproduced",
        "not reproduced",
        "not reproduced",
    ]
    assert found["tight"].numbers["0.15"] == pytest.approx(7.43592 / 6.261537 - 1, abs=1e-5)
    monkeypatch.setattr(prices, "epsilon_closed_form", lambda rho, delta: rho + 2.01 * rho**0.5)
    monkeypatch.setattr(prices, "epsilon_exact", lambda rho, delta: rho + 2.01 * rho**0.5)
    monkeypatch.setattr(prices, "overall_epsilon", lambda series, steps: 0.1 * steps)
    other = verdicts()
    assert [other[name].verdict for name in ("closed form", "tight", "proportional")] == [
        "not reproduced",
        "reproduced",
        "reproduced",
    ]


def finding(verdict, measured=4.2):
    pair = {"user": 60, "item": 50, "value": 5.0, "change": "rating set to 1"}
    pair |= {"ratings_of_user": 208, "ratings_of_item": 583}
    details = {
        "steps": 9,
        "pairs": 3,
        "ratio": measured / 4,
        "replay": {"pair": pair, "step": 7},
        "why": "it diverged",
    }
    return {
        "data": "tiny",
        "verdict": verdict,
        "measured": measured,
        "claimed": 4.0,
        "details": details,
    }


@pytest.mark.parametrize(
    ("audited", "verdict", "why"),
    [
        ("violated", "not reproduced", "item factors as fixed"),
        ("consistent", "reproduced", "no proof"),
        ("inconclusive", "not testable here", "it diverged"),
    ],
)
def test_the_sensitivity(audited, verdict, why):
    claim = verdicts(findings={"range": finding(audited), "plots": finding(audited)})[
        "sensitivity, τ the range"
    ]
    assert claim.verdict == verdict
    assert why in claim.why
    assert "on tiny, 9 steps" in claim.why
    if verdict != "not testable here":
        assert "among 583 ratings of an item, by a user with 208, set to 1" in claim.why
        assert "60" not in claim.why  # the page is published


def test_without_rows_nothing_is_made_up():
    for claim in verdicts().values():
        if claim.verdict == "not testable here":
            assert claim.value == ""
            assert claim.numbers == {}
            assert re.search(r"run dpmf reproduce 001/fig\d+ first|no audit was run", claim.why)
    assert sum(claim.verdict == "not testable here" for claim in verdicts().values()) == 15


def test_a_part_of_a_figure_and_other_ratings_are_not_the_figure():
    part = verdicts([summary_of("001/fig4", LIKE_THE_PAPER, series=("0.15", "0.90"))])
    assert part["trade-off"].verdict == "not testable here"
    assert "0.20 is not stored" in part["trade-off"].why
    other = verdicts([summary_of("001/fig4", LIKE_THE_PAPER, ratings=cases.generated())])
    assert other["trade-off"].verdict == "not testable here"
    assert "not on ml-1m" in other["trade-off"].why


def test_the_names_are_distinct_and_every_text_is_there():
    assert len({statement.name for statement in claims.STATEMENTS}) == len(claims.STATEMENTS) == 20
    for _, where, statement, how, _ in claims.STATEMENTS:
        assert where
        assert statement.endswith(".")
        assert how


def save(out, *some):
    for one in some:
        stem = FIGURES[one["figure"]].stem
        (out / stem).mkdir(parents=True, exist_ok=True)
        (out / stem / f"{stem}.json").write_text(json.dumps(one))


def test_a_file_that_is_no_figure_s_is_refused(tmp_path):
    save(tmp_path, summary_of("001/fig4", LIKE_THE_PAPER))
    assert list(figures.CATALOGUE.stored(tmp_path)) == ["001/fig4"]
    path = tmp_path / "001-fig4" / "001-fig4.json"
    for text in ("{", "[]", "{}", path.read_text().replace('"001/fig4"', '"001/fig5"', 1)):
        path.write_text(text)
        with pytest.raises(DataError, match="not the rows of 001/fig4"):
            figures.CATALOGUE.stored(tmp_path)


@pytest.fixture
def quick_audit(monkeypatch):
    monkeypatch.setattr(claims, "AUDIT_STEPS", 3)
    monkeypatch.setattr(claims, "AUDIT_PAIRS", 4)
    monkeypatch.setattr(claims, "SMALL", (12, 9, 40, 2))


@pytest.mark.seconds
def test_the_command_trains_nothing_and_writes_the_same_twice(
    tmp_path, monkeypatch, capsys, quick_audit
):
    monkeypatch.setattr(training, "train_all", lambda *_, **__: pytest.fail("it trained"))
    out, docs = tmp_path / "out", tmp_path / "docs"
    save(out, *figures_1_and_4(LIKE_THE_PAPER))
    data = ("--data-dir", str(tmp_path), "--json")
    words = ("001/claims", "--out", str(out), "--docs", str(docs), *data)
    assert cases.command_line(*words) == 0  # not reproduced is a finding, not an error
    said = json.loads(capsys.readouterr().out)
    assert (said["figures"], said["result"]) == ([], "informative")
    assert said["claims"]["counts"] == {
        "reproduced": 7,
        "not reproduced": 4,
        "not testable here": 9,
    }
    assert said["claims"]["audit"]["data"].startswith("synthetic")
    made = {
        path: path.read_bytes()
        for folder in (out / "001-claims", docs)
        for path in folder.rglob("*.*")
    }
    assert {path.name for path in made} == {
        *(f"001-claims.{suffix}" for suffix in ("csv", "json", "md")),
        *(f"001-fig{number}.{suffix}" for number in (1, 4) for suffix in ("csv", "svg")),
        "001.md",
    }
    stale = docs / "001" / "001-fig7.svg"
    stale.write_text("of a figure that is no longer stored")
    (docs / "001" / "notes.txt").write_text("somebody's")
    assert cases.command_line(*words) == 0
    assert {path: path.read_bytes() for path in made} == made
    assert not stale.exists()
    assert (docs / "001" / "notes.txt").exists()
    for path in made:
        assert str(tmp_path) not in path.read_text()
    written = list(csv.DictReader(io.StringIO((out / "001-claims" / "001-claims.csv").read_text())))
    assert [row["verdict"] for row in written] == [row["verdict"] for row in said["claims"]["rows"]]
    assert {"commit", "device", "notice", "how", "why"} < set(written[0])


@pytest.mark.seconds
def test_the_table_is_printed(tmp_path, capsys, quick_audit):
    assert (
        cases.command_line("001/claims", "--out", str(tmp_path), "--data-dir", str(tmp_path)) == 0
    )
    said = capsys.readouterr().out
    assert "not testable here" in said
    assert "not private" in said
    assert "4 reproduced, 3 not reproduced, 13 not testable here" in said


def pages(*some, **change):
    stored = {one["figure"]: one for one in some}
    judged = claims.judge(
        Evidence(stored, {"range": finding("violated"), "plots": finding("consistent")})
    )
    audit = {"data": "tiny", "steps": 9, "pairs": 3, "seed": 0}
    rest = {"command": "dpmf", "commit": "c0ffee", "device": "cpu", "audit": audit}
    record = shared.claims_summary(
        figures.CATALOGUE, judged, stored, beside=page.held_out_sentence(stored), **rest
    )
    return page.page(record, stored)


@pytest.mark.seconds
def test_the_page_opens_with_a_verdict_and_a_picture():
    inside = summary_of("001/fig10", same_level, ranks=(4, 20))
    outside = summary_of("001/fig4", same_level)
    for some, words in (
        ((), "No plotted number of this paper has been checked yet."),
        ((inside,), "can be reproduced: trained again, all 10"),
        ((inside, outside), "in part: trained again, 16 of its 22"),
    ):
        lines = pages(*some).splitlines()
        assert words in lines[2]
        assert "Of 20 readings" in lines[2]
        assert lines[4].startswith("![") == bool(some)
    for name, figure in FIGURES.items():
        assert (f"### Figure {figure.number}\n" in pages(outside)) == (name == "001/fig4")
    assert "figures 1, 7, 10, 13, 16, 19, 22, 25; `dpmf reproduce 001/fig1 001/fig7" in pages(
        outside
    )
    assert "One changed rating moves" in pages().split("## Figures")[0]


def test_figures_that_repeat_others_are_not_counted_twice():
    same = [summary_of(f"001/fig{number}", same_level, ranks=(4, 20)) for number in (10, 13)]
    assert "all 10" in pages(*same).splitlines()[2]


@pytest.mark.seconds
def test_every_kind_of_figure_has_a_picture_and_a_table():
    for name in ("001/fig1", "001/fig4", "001/fig7", "001/fig10", "001/fig13", "001/fig25"):
        some = {"ranks": (4, 20)} if FIGURES[name].x_name == "n" else {}
        one = summary_of(
            name, LIKE_THE_PAPER if name in ("001/fig1", "001/fig4") else same_level, **some
        )
        drawn = pictures.svgs(FIGURES[name], one)
        assert drawn == pictures.svgs(FIGURES[name], json.loads(json.dumps(one)))
        assert "<svg" in drawn[".svg"]
        text = pages(one).split(f"### Figure {FIGURES[name].number}\n")[1]
        table = text.split("## Statements")[0]
        for series in FIGURES[name].series:
            assert f"\n| {series} |" in table
