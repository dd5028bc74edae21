"""`dpmf reproduce`: the list, refusals, exit codes, what is written, what an interrupt leaves."""

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

from dpmf_jax.models import storage
from experiments.cli import main as cli
from experiments.reproduce import flags, pictures
from tests.cases import reproduce as cases
from tests.cases.reproduce import command_line, rating_file

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_two_calls_do_not_work_in_one_folder(tmp_path, capsys):
    """Each would write its own, shorter, curve over the other's."""
    data, out = cases.rating_file(tmp_path / "data"), tmp_path / "out"
    words = ("001/fig10", "--series", "0.5", "--ranks", "4", "--seeds", "0", "--beside", "none")
    words = (*words, "--data-dir", str(data), "--out", str(out), "--devices", "1")
    with storage.lock(storage.private_folder(out / "ml-1m")):
        assert cases.command_line(*words) == 2
    assert "another process is at work" in capsys.readouterr().err
    assert not list(out.rglob("run.json"))


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
        (("001/claims", "--seeds", "1"), "trains nothing"),
        (("001/claims", "--ranks", "20"), "trains nothing"),
        (("001/fig1", "--docs", "docs"), "goes with 001/claims"),
        (("001/claim",), "there is no figure"),
        (("003/fig1", "002/fig1", "--ranks", "4"), "figures of paper 001"),
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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
