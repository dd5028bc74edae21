"""``dpmf data`` on small files and generated ratings; what the readers themselves do is tested
beside them.
"""

import json

import pytest

from dpmf_jax.data import datasets
from experiments.cli import main as cli

GOOD = "user,item,rating\n1,10,5\n1,11,4.5\n2,10,1\n"
BAD = "user,item,rating\n1,10,5\n1,10,4\n2,10,9\n2,11,nan\n"


@pytest.fixture
def dpmf(capsys, monkeypatch, tmp_path):
    """Runs `dpmf data ...` in an empty folder without any data: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMF_DATA", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(["data", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_list_knows_what_is_there_and_how_to_get_the_rest(dpmf, tmp_path):
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat").write_text("1::10::5::0\n")
    code, out, _ = dpmf("list", "--data-dir", str(tmp_path), "--json")
    rows = {row["name"]: row for row in json.loads(out)["datasets"]}
    assert code == 0
    assert rows["ml-1m"]["path"] == str(tmp_path / "ml-1m" / "ratings.dat")
    assert rows["ml-100k"]["path"] is None
    assert "GroupLens" in rows["ml-100k"]["how_to_get"]
    text = dpmf("list", "--data-dir", str(tmp_path))[1]
    assert all(name in text for name in rows)
    assert text.index(rows["ml-1m"]["path"]) < text.index("MovieLens 100K")


def test_check_of_a_good_file(dpmf, tmp_path):
    (tmp_path / "a.csv").write_text(GOOD)
    code, out, err = dpmf("check", "a.csv", "--rating-range", "1", "5", "--json")
    report = json.loads(out)
    assert (code, err, report["ok"]) == (0, "", True)
    assert (report["rows"], report["users"], report["items"], report["duplicates"]) == (3, 2, 2, 0)
    assert report["histogram"] == {"1": 1, "4.5": 1, "5": 1}
    text = dpmf("check", "a.csv", "--rating-range", "1", "5")[1]
    assert report["files"][0]["sha256"] in text
    assert report["triples_sha256"] in text
    assert text.endswith("\nok\n")


def test_check_of_a_bad_file_names_every_row_and_exits_with_3(dpmf, tmp_path):
    (tmp_path / "a.csv").write_text(BAD)
    code, out, err = dpmf("check", "a.csv", "--rating-range", "1", "5")
    assert code == 3
    assert all(f"a.csv, line {line}" in out for line in (3, 4, 5))
    assert out.endswith("NOT OK\n")
    what, where, fix = err.splitlines()
    assert what == "error: 3 problems in a.csv"
    assert where.startswith("where: a.csv, line ")
    assert fix.startswith("fix: ")
    assert not json.loads(dpmf("check", "a.csv", "--rating-range", "1", "5", "--json")[1])["ok"]


def test_many_problems_are_counted_and_some_are_shown(dpmf, tmp_path):
    (tmp_path / "a.csv").write_text(
        "user,item,rating\n" + "".join(f"{user},1,9\n{user},2,3\n" for user in range(50))
    )
    _, out, err = dpmf("check", "a.csv", "--rating-range", "1", "5", "--limit", "30")
    assert err.startswith("error: 50 problems in a.csv\n")
    assert out.count("a.csv, line") == 20
    assert "50 problems in all" in out


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["check", "a.csv"], 2, "rating"),
        (["check", "nowhere.csv", "--rating-range", "1", "5"], 3, "nowhere.csv"),
        (["check", "ml-1m"], 3, "ml-1m"),
        (["check", "a.csv", "--limit", "0"], 2, "a list of 0 problems"),
        (
            ["check", "a.csv", "--rating-range", "1", "5", "--weight-column", "w"],
            3,
            "weight column w",
        ),
        (["check", "synthetic-20x10x60", "--weight-column", "w"], 2, "no weights"),
        (["convert", "a.csv", "b.xls", "--rating-range", "1", "5"], 2, "b.xls"),
        (["convert", "a.csv", "a.csv", "--rating-range", "1", "5"], 2, "a.csv exists"),
    ],
)
def test_an_error_has_a_fix_and_leaves_nothing_behind(dpmf, tmp_path, words, code, error):
    (tmp_path / "a.csv").write_text(GOOD)
    ended, out, err = dpmf(*words)
    assert (ended, out) == (code, "")
    assert error in err.splitlines()[0]
    assert "\nfix: " in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_convert_there_and_back_keeps_every_triple(dpmf, tmp_path, ending):
    (tmp_path / "a.csv").write_text(GOOD)
    there = json.loads(
        dpmf("convert", "a.csv", f"b.{ending}", "--rating-range", "1", "5", "--json")[1]
    )
    declared = [] if ending == "parquet" else ["--rating-range", "1", "5"]
    report = json.loads(dpmf("check", f"b.{ending}", "--json", *declared)[1])
    assert there["triples_sha256"] == report["triples_sha256"]
    assert (there["ratings"], there["users"], there["items"]) == (3, 2, 2)
    assert there["rating_range"] == report["rating_range"] == [1.0, 5.0]


WEIGHED = "user,item,rating,w\na,1,3,1\na,2,{},7\nb,1,4,0.5\nb,2,{},1.25\n"


@pytest.mark.parametrize("last", ["2", "x"])
def test_check_finds_wrong_weights_whether_the_rest_parses_or_not(dpmf, tmp_path, last):
    (tmp_path / "a.csv").write_text(WEIGHED.format(9, last))
    words = "check", "a.csv", "--rating-range", "1", "5", "--json"
    problems = json.loads(dpmf(*words, "--weight-column", "w")[1])["problems"]
    found = {(problem["where"][-1], problem["what"]) for problem in problems}
    assert ("3", "rating 9 is outside the declared range 1 to 5") in found
    assert ("3", "the weight 7 is not between 0 and 1") in found
    assert ("5", "the rating 'x' is not a number") in found or last == "2"
    assert ("5", "the weight 1.25 is not between 0 and 1") in found or last == "x"
    assert len(found) == 3
    unread = json.loads(dpmf(*words)[1])["problems"]
    assert not any("weight" in problem["what"] for problem in unread)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_convert_keeps_weights_where_they_are_asked_for(dpmf, tmp_path, ending):
    (tmp_path / "a.csv").write_text(WEIGHED.replace(",7", ",0").replace(",1.25", ",1").format(2, 1))
    read = ["--rating-range", "1", "5", "--weight-column", "w", "--json"]
    there = json.loads(dpmf("convert", "a.csv", f"b.{ending}", *read)[1])
    read[read.index("w")] = "weight"
    report = json.loads(dpmf("check", f"b.{ending}", *read)[1])
    assert there["triples_sha256"] == report["triples_sha256"]  # of user, item, rating and weight
    without = json.loads(dpmf("check", f"b.{ending}", "--rating-range", "1", "5", "--json")[1])
    assert without["triples_sha256"] != report["triples_sha256"]
    read[read.index("--weight-column") : -1] = []
    dpmf("convert", "a.csv", f"c.{ending}", *read)
    assert dpmf("check", f"c.{ending}", *read, "--weight-column", "weight")[0] == 3


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_convert_keeps_times_where_they_are_asked_for(dpmf, tmp_path, ending):
    rows = [(1, 10, 3, 881250949), (1, 11, 4, 891717742.5), (2, 10, 1, 5)]
    lines = ["user,item,rating,when", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    read = ["--rating-range", "1", "5"]
    words = ["convert", "a.csv", f"b.{ending}", *read, "--time-column", "when"]
    assert dpmf(*words)[0] == 0
    again = datasets.load(tmp_path / f"b.{ending}", rating_range=(1, 5), time_column=True)
    assert again.time.tolist() == [row[-1] for row in rows]
    assert dpmf("convert", "a.csv", f"c.{ending}", *read)[0] == 0
    assert dpmf("convert", f"b.{ending}", f"d.{ending}", *read, "--time-column", "found")[0] == 0
    both = [(tmp_path / f"{name}.{ending}").read_bytes() for name in "bd"]
    assert both[0] == both[1]
    code, _, err = dpmf("convert", f"c.{ending}", f"e.{ending}", *read, "--time-column", "found")
    assert (code, "there is no time column" in err) == (3, True)


def test_what_is_dropped_on_the_way_is_said(dpmf, tmp_path):
    (tmp_path / "a.csv").write_text(BAD.replace("2,11,nan\n", "2,11,3\n"))
    settings = ["--rating-range", "1", "5", "--duplicates", "mean", "--out-of-range", "clip"]
    code, out, err = dpmf("convert", "a.csv", "b.csv", *settings)
    assert (code, err) == (0, "")
    assert "b.csv: 3 ratings, 2 users, 2 items, rated 1 to 5" in out
    assert "clip" in out
    assert "mean" in out


def test_generated_ratings_are_a_data_set(dpmf, tmp_path):
    code, out, _ = dpmf("check", "synthetic-20x10x60-seed3", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 60)


def test_what_is_printed_of_ratings_says_that_nothing_protects_it(dpmf, tmp_path):
    """ "Not private" reads as "open to all", which is the opposite of what is meant."""
    (tmp_path / "a.csv").write_text(GOOD)
    for words in (("check", "a.csv"), ("convert", "a.csv", "b.csv")):
        out = dpmf(*words, "--rating-range", "1", "5")[1]
        assert "for the curator" in out
        assert "do not show" in out
        assert "private" not in out
