"""Reproductions: which points decide, the tolerance, exit 6, what is written, points that ship."""

import csv
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

from dpmf_jax.errors import UsageError
from experiments.cli import main as cli
from experiments.reproduce import comparison, flags, pictures
from experiments.reproduce.paper001 import figures, plans, work
from experiments.reproduce.paper001.figures import Point, Request
from tests.cases.reproduce import FIGURE, SERIES, command_line, rating_file

SHIPPED = [*range(1, 13), *range(16, 19)]


def point(x: float, kind: str, y: float = 0.9, series: str = "0.15") -> Point:
    return Point(series, x, y, "rmse", kind, "iteration")


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
    """0.83893 + 0.005 - 0.83893 is above 0.005 in floating point for some decimals; all of them are
    inside.
    """
    for paper in np.round(np.arange(0.69, 0.91, 0.00001), 5):
        (row,) = comparison.compare(
            [point(1.0, "line_end", paper)], {"0.15": [[0.0, float(paper) + 0.005]]}
        )
        assert row.result == "inside"


def test_the_mean_over_seeds_is_compared():
    curves = {
        "0.15": [[0.0, 0.91], [0.0, 0.89], [0.0, 0.903]]
    }  # two of three are outside, their mean is not
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
    assert comparison.verdict([]) == "no points to compare"
    assert comparison.worst([]) is None


def test_list(tmp_path, capsys):
    data = str(rating_file(tmp_path / "data"))
    assert command_line("--list", "--beside", "none", "--data-dir", data, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in told["figures"]}
    assert sorted(rows) == sorted(f"001/fig{number}" for number in range(1, 28))
    assert {row["number"] for row in told["figures"]} == set(range(1, 28))
    assert rows["001/fig1"]["small"] == rows["001/fig1"]["full"]
    assert (rows["001/fig1"]["small"]["runs"], rows["001/fig1"]["small"]["steps"]) == (21, 37_536)
    assert rows["001/fig7"]["small"]["minutes"] < rows["001/fig7"]["full"]["minutes"]
    assert {row["here"] for row in told["figures"] if row["data"] == "ml-1m"} == {"ml-1m"}
    assert {row["here"] for row in told["figures"] if row["data"] != "ml-1m"} == {None}
    (everything,) = told["groups"]
    assert everything["small"]["runs"] < sum(
        rows[name]["small"]["runs"] for name in everything["figures"]
    )
    (tmp_path / "data" / "anime-5000").mkdir()
    (tmp_path / "data" / "anime-5000" / "rating.csv").touch()
    assert command_line("--list", "--data-dir", data, "--json") == 0
    beside = {row["name"]: row for row in json.loads(capsys.readouterr().out)["figures"]}
    assert [beside["001/fig1"][scale]["runs"] for scale in ("small", "full")] == [
        21 + 6 * 3 + 1,
        21 + 3 * (6 * 3 + 1),
    ]
    assert beside["001/fig1"]["small"]["steps"] == 37_536 + 3 * (37_536 // 3 - 2491) + 2489
    assert beside["001/fig3"]["here"] == "anime-5000"
    assert command_line("--list", "--data-dir", data) == 0
    said = capsys.readouterr().out
    assert "001/fig27" in said
    assert "001/all" in said
    assert said.count("data absent") == 2 * (
        9 + 13 + 1
    )  # of paper 002 the comparison alone is of other data


def test_no_data_folder_lists_everything_as_absent(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DPMF_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert command_line("--list") == 0
    assert capsys.readouterr().out.count("data absent") == 2 * (
        28 + 3 + 13 + 6
    )  # figures and the groups of all


def test_listing_needs_no_jax():
    code = (
        "from experiments.cli import main; main.main(['reproduce', '--list']); import sys;"
        " print('jax' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "False", run.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "no figure is named"),
        (("001/fig99",), "there is no figure"),
        (("001/fig1", "--series", "0.4"), "no series 0.4"),
        (("001/fig10", "--series", "non-private"), "no series non-private"),
        (("001/fig1", "001/fig10", "--series", "0.15"), "no series 0.15"),
        (("001/fig1", "--seeds", "1", "1"), "distinct"),
        (("001/fig1", "--seeds", "-1"), ""),
        (("001/fig1", "--ranks", "20"), "not over ranks"),
        (("001/fig7", "--ranks", "21"), "no rank 21"),
        (("001/fig7", "--scale", "huge"), ""),
        (("001/fig7", "--beside", "some"), ""),
    ],
)
def test_usage(words, what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command_line(*words) == 2
    assert what in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_absent_data_is_a_data_error(tmp_path, capsys):
    for name in ("001/fig1", "001/fig2", "001/fig3"):
        assert command_line(name, "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")) == 3
        assert "are not there" in capsys.readouterr().err


def test_outside_tolerance_writes_everything_and_exits_6(tmp_path, capsys):
    """Ratings that are not MovieLens-1M give other curves: the command must say so."""
    data, root = rating_file(tmp_path / "data"), tmp_path / "out"
    out = root / "001-fig1"
    words = (
        "001/fig1",
        "--series",
        "0.15",
        "non-private",
        "--seeds",
        "0",
        "1",
        "--data-dir",
        str(data),
    )
    words = (*words, "--out", str(root), "--devices", "1", "--json")
    assert command_line(*words) == 6
    said = capsys.readouterr()
    (told,) = json.loads(said.out)["figures"]
    assert told["result"] == json.loads(said.out)["result"] == "outside"
    assert "from the paper" in said.err
    assert pictures.NOTICE in said.err
    names = {f"001-fig1{end}" for end in (".csv", ".json", ".md", ".svg", "-held-out.svg")}
    assert {path.name for path in out.iterdir()} == names
    for path in out.iterdir():
        assert pictures.NOTICE.lower() in path.read_text().lower()
    for path in out.glob("*.svg"):
        xml.etree.ElementTree.parse(path)

    written = json.loads((out / "001-fig1.json").read_text())
    assert written == {name: value for name, value in told.items() if name not in ("out", "files")}
    rows = list(csv.DictReader(io.StringIO((out / "001-fig1.csv").read_text())))
    every = told["rows"] + told["beside"]["rows"]
    assert len(rows) == len(every)
    for row, same in zip(rows, every, strict=True):
        for name in ("series", "result", "variant", "part", "axis", "kind"):
            assert row[name] == same[name]
        assert float(row["x"]) == same["x"]
        assert row["guarantee"].startswith("experiment, do not release") or row["variant"] in (
            "item-means",
            "global-mean",
        )
        values = np.array(row["values"].split(), float)
        if same not in told["rows"]:
            assert row["paper"] == row["tolerance"] == row["difference"] == ""
            assert row["result"] == "informative"
            continue
        assert (row["variant"], row["part"]) == (
            "non-private" if row["series"] == "non-private" else "published",
            "all",
        )
        assert len(values) == 2
        if row["paper"]:
            assert float(row["difference"]) == pytest.approx(values.mean() - float(row["paper"]))
        assert (row["rank"], row["learning_rate"], row["seeds"]) == ("20", "0.0005", "0 1")
        assert {
            "commit",
            "device",
            "tolerance",
            "tau",
            "guarantee",
            "num_steps",
            "noise_multiplier",
        } < set(row)

    private, none = told["settings"]
    assert private["headline"].startswith("experiment, do not release: claimed ε = 7.4360")
    assert private["guarantee"]["seeded"]
    assert none["headline"].startswith("experiment, do not release: no privacy guarantee")
    assert told["command"] == "dpmf reproduce 001/fig1 --series 0.15 non-private --seeds 0 1"

    before = {path: path.read_bytes() for path in out.iterdir()}
    assert command_line(*words) == 6  # nothing is trained, the same is written again
    assert {path: path.read_bytes() for path in before} == before


def test_figures_share_their_runs_and_one_outside_is_enough(tmp_path, capsys):
    data, root = rating_file(tmp_path / "data"), tmp_path / "out"
    words = (
        "--series",
        "0.5",
        "--seeds",
        "0",
        "--ranks",
        "4",
        "--data-dir",
        str(data),
        "--out",
        str(root),
    )
    words = (*words, "--beside", "none")
    assert (
        command_line("001/fig10", "001/fig13", "001/fig7", *words, "--devices", "1", "--json") == 6
    )
    told = json.loads(capsys.readouterr().out)
    assert [one["figure"] for one in told["figures"]] == ["001/fig10", "001/fig13", "001/fig7"]
    assert [one["result"] for one in told["figures"]] == ["inside", "outside", "outside"]
    assert told["result"] == "outside"
    assert len(list((root / "ml-1m" / "private").iterdir())) == 1
    assert sorted(path.name for path in root.iterdir()) == [
        "001-fig10",
        "001-fig13",
        "001-fig7",
        "ml-1m",
    ]


def test_a_price_alone_is_inside_and_exits_0(tmp_path, capsys):
    data = rating_file(tmp_path / "data")
    words = (
        "--series",
        "0.5",
        "--seeds",
        "0",
        "--ranks",
        "4",
        "--data-dir",
        str(data),
        "--out",
        str(tmp_path / "out"),
    )
    assert command_line("001/fig10", *words, "--beside", "none") == 0
    assert "inside tolerance: 1 of 1" in capsys.readouterr().out


@pytest.mark.slow
def test_anime_takes_the_slice_that_is_there_and_compares_nothing(tmp_path, capsys):
    folder, ratings = tmp_path / "data" / "anime-5000", np.random.default_rng(0)
    folder.mkdir(parents=True)
    pairs = [f"{user},{item},{ratings.integers(1, 11)}" for user in range(9) for item in range(5)]
    (folder / "rating.csv").write_text("\n".join(["user_id,anime_id,rating", *pairs]) + "\n")
    words = (
        "--series",
        "0.15",
        "--seeds",
        "0",
        "--data-dir",
        str(folder.parent),
        "--out",
        str(tmp_path / "out"),
    )
    assert command_line("001/fig3", "001/fig6", *words, "--devices", "1", "--json") == 0
    said = capsys.readouterr()
    assert "anime-5000 instead" in said.err
    for told in json.loads(said.out)["figures"]:
        assert told["result"] == "no points to compare"
        assert told["rows"]
        assert all(row["paper"] is None for row in told["rows"])
        assert told["config"]["tau"] == 10
        assert "not the paper's ratings" in told["rule"]
        drawn = [path for path in told["files"] if path.endswith(".svg")]
        assert len(drawn) == 2
        for path in drawn:
            assert "anime-5000" in Path(path).read_text()
            assert "AnimeReco" not in Path(path).read_text()


def test_ctrl_c_names_the_command_that_resumes(tmp_path):
    data, out = rating_file(tmp_path / "data"), tmp_path / "out"
    words = ["001/fig1", "001/fig4", "--seeds", *map(str, range(12))]
    words += ["--data-dir", str(data), "--out", str(out), "--devices", "1"]
    start = [sys.executable, "-m", "experiments.cli", "reproduce", *words]
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as run:
        while not list(
            out.rglob("run.json")
        ):  # an interrupt while XLA compiles can crash Python on its way out
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        said = run.communicate()[1]
    assert run.returncode == 130, said
    assert f"resume with: dpmf reproduce {' '.join(words)}" in said
    assert not list(out.glob("001-fig*"))


def test_the_command_line_is_the_command():
    command = flags.Command(
        figures=("001/fig1", "001/fig4"),
        series=("0.15", "non-private"),
        seeds=(4,),
        scale="full",
        json=True,
    )
    said = (
        "dpmf reproduce 001/fig1 001/fig4 --scale full --series 0.15 non-private --seeds 4 --json"
    )
    assert flags.command_line(command) == said
    assert cli.parse("reproduce", flags.Command, said.split()[2:]) == command


def test_without_matplotlib_the_rest_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    data, out = rating_file(tmp_path / "data"), tmp_path / "out"
    words = (
        "--series",
        "0.15",
        "--seeds",
        "0",
        "--data-dir",
        str(data),
        "--out",
        str(out),
        "--devices",
        "1",
    )
    assert command_line("001/fig1", "001/fig4", *words) == 6
    assert "matplotlib is not installed" in capsys.readouterr().err
    for name in ("001-fig1", "001-fig4"):
        assert {path.suffix for path in (out / name).iterdir()} == {".csv", ".json", ".md"}
        assert ".svg" not in (out / name / f"{name}.md").read_text()


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
