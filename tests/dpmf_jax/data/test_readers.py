"""Official layouts, columns by name and position, parquet, finding files, reports, conversion; and
the real files.
"""

import contextlib
import gzip
import threading

import numpy as np
import pytest

from dpmf_jax.data import datasets, export, lines
from dpmf_jax.data.catalogue import DATASETS
from dpmf_jax.data.formats import Format
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.data.report import check
from dpmf_jax.data.text import read_text
from dpmf_jax.errors import DataError, UsageError

TRIPLES = [(1, 10, 3), (2, 10, 4), (2, 2**31, 5)]

LAYOUTS = {
    "ml-100k": ("ml-100k/u.data", "{}\t{}\t{}\t881250949\n", ""),
    "ml-1m": ("ml-1m/ratings.dat", "{}::{}::{}::978300760\n", ""),
    "ml-10m": ("ml-10M100K/ratings.dat", "{}::{}::{}::838985046\n", ""),
    "ml-20m": (
        "ml-20m/ratings.csv",
        "{},{},{}.0,1112486027\r\n",
        "userId,movieId,rating,timestamp\r\n",
    ),
    "ml-25m": (
        "ml-25m/ratings.csv",
        "{},{},{}.0,1147880044\n",
        "userId,movieId,rating,timestamp\n",
    ),
    "ml-32m": (
        "ml-32m/ratings.csv",
        "{},{},{}.0,1147880044\n",
        "userId,movieId,rating,timestamp\n",
    ),
    "anime": ("anime/rating.csv", "{},{},{}\n", "user_id,anime_id,rating\n"),
    "anime-5000": ("anime-5000/rating.csv", "{},{},{}\n", "user_id,anime_id,rating\n"),
    "libimseti": ("libimseti/ratings.dat", "{},{},{}\n", ""),
    "libimseti-9k": ("libimseti-9k/ratings.dat", "{},{},{}\n", ""),
    "netflix-52": ("netflix-52/ratings.csv", "{},{},{}\n", "user_id,item_id,rating\n"),
}


def triples(ratings):
    user, item = ratings.users[ratings.user].tolist(), ratings.items[ratings.item].tolist()
    return sorted(zip(user, item, ratings.value.tolist(), strict=True))


def put(folder, file, data):
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_official_layouts(name, tmp_path, monkeypatch):
    file, line, header = LAYOUTS[name]
    text = header + "".join(line.format(*triple) for triple in TRIPLES)
    path = put(tmp_path, file, text)
    ratings = datasets.load(name, data_dir=tmp_path)
    assert triples(ratings) == TRIPLES
    assert ratings.rating_range == DATASETS[name].rating_range
    assert ratings.name == name
    assert triples(datasets.load(name, data_dir=path.parent)) == TRIPLES  # the folder itself
    monkeypatch.setenv("DPMF_DATA", str(tmp_path))
    assert triples(datasets.load(name)) == TRIPLES
    path.unlink()
    put(tmp_path, f"{file}.gz", gzip.compress(text.encode()))
    assert triples(datasets.load(name)) == TRIPLES


def test_every_data_set_is_tested_in_its_layout():
    assert {*LAYOUTS, "netflix"} == set(DATASETS)


def test_half_stars_and_the_splits_of_10m(tmp_path):
    put(tmp_path, "ml-10m/ratings.dat", "1::10::0.5::8\n2::10::4.5::8\n2::11::5::8\n")
    put(tmp_path, "ml-10m/r1.train", "1::10::0.5::8\n2::10::4.5::8\n2::12::3::8\n")
    put(tmp_path, "ml-10m/r1.test", "3::11::5::8\n1::12::5::8\n")
    assert datasets.load("ml-10m", data_dir=tmp_path).value.tolist() == [0.5, 4.5, 5]
    train, test = datasets.load("ml-10m", data_dir=tmp_path, split="r1")
    assert (len(train), len(test)) == (3, 2)
    assert train.users.tolist() == test.users.tolist() == [1, 2, 3]
    assert train.items.tolist() == test.items.tolist() == [10, 11, 12]
    assert "r1: test" in test.notes[-1]
    with pytest.raises(DataError, match=r"r2.*\nwhere: looked for .*r2.train"):
        datasets.load("ml-10m", data_dir=tmp_path, split="r2")
    put(tmp_path, "ml-10m/r1.test", "3::11::5::8\n1::10::5::8\n")
    with pytest.raises(DataError, match="1 ratings are in both"):
        datasets.load("ml-10m", data_dir=tmp_path, split="r1")


def test_anime_drops_and_counts_what_was_watched_but_not_rated(tmp_path):
    put(
        tmp_path, "anime/rating.csv", "user_id,anime_id,rating\n1,10,3\n2,10,-1\n2,11,10\n3,11,-1\n"
    )
    ratings = datasets.load("anime", data_dir=tmp_path)
    assert triples(ratings) == [(1, 10, 3), (2, 11, 10)]
    assert ratings.users.tolist() == [1, 2, 3]
    assert ratings.notes == ("2 rows with rating -1 (not rated) dropped",)
    report = check("anime", data_dir=tmp_path)
    assert (report["rows"], report["not_rated"], report["histogram"]) == (4, 2, {"3": 1, "10": 1})


NETFLIX = {
    "combined_data_1.txt": "1:\n6,3,2005-09-06\n7,4,2005-05-13\n2:\n6,5,2005-09-06\n",
    "combined_data_2.txt": "3:\n7,1,2005-09-06\n",
}


@pytest.mark.parametrize(
    "change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text]
)
@pytest.mark.parametrize("block", [1, 5, 17, 1 << 20])
def test_netflix_in_many_movies_a_file(tmp_path, monkeypatch, change, block):
    monkeypatch.setattr("dpmf_jax.data.netflix.CHUNK", block)
    for file, text in NETFLIX.items():
        put(tmp_path, f"netflix/{file}", change(text))
    expected = [(6, 1, 3), (6, 2, 5), (7, 1, 4), (7, 3, 1)]
    assert triples(datasets.load("netflix", data_dir=tmp_path)) == expected
    assert triples(datasets.load(tmp_path / "netflix")) == expected


def test_netflix_in_one_movie_a_file_with_blank_lines(tmp_path):
    put(tmp_path, "netflix/training_set/mv_0000001.txt", "1:\n6,3,2005-09-06\n\n7,4,2005-05-13\n\n")
    put(tmp_path, "netflix/training_set/mv_0000002.txt", "2:\n6,5,2005-09-06")
    assert triples(datasets.load("netflix", data_dir=tmp_path)) == [(6, 1, 3), (6, 2, 5), (7, 1, 4)]


def test_netflix_names_the_file_and_line_of_a_bad_row(tmp_path):
    for file, text in NETFLIX.items():
        put(tmp_path, file, text + "8,9,2005-09-06\n" * (file == "combined_data_2.txt"))
    with pytest.raises(
        DataError, match=r"rating 9 is outside.*\nwhere: .*combined_data_2.txt, line 3"
    ):
        datasets.load(tmp_path)


def test_string_ids_and_leading_zeros_lose_nothing(tmp_path):
    path = put(tmp_path, "a.csv", "user,item,rating\nann,0062622,3\nbob,62622,4\n")
    ratings = datasets.load(path, rating_range=(1, 5))
    assert triples(ratings) == [("ann", "0062622", 3), ("bob", "62622", 4)]
    path = put(tmp_path, "b.csv", f"user,item,rating\n{2**31},1,3\n{2**63},2,4\n")
    assert datasets.load(path, rating_range=(1, 5)).users.tolist() == [str(2**31), str(2**63)]


def test_columns_by_flag_name_and_by_position(tmp_path):
    path = put(tmp_path, "a.tsv", "stars\twho\tuser\twhat\n3\tann\t9\tx\n4\tbob\t9\ty\n")
    flags = {"user_column": "who", "item_column": "what", "rating_column": "stars"}
    expected = [("ann", "x", 3), ("bob", "y", 4)]
    assert triples(datasets.load(path, rating_range=(1, 5), **flags)) == expected
    path = put(tmp_path, "b.txt", "3|ann|9|x\n4|bob|9|y\n")
    flags = {"user_column": "2", "item_column": "4", "rating_column": "1"}
    assert triples(datasets.load(path, rating_range=(1, 5), **flags)) == expected
    assert triples(datasets.load(path, rating_range=(1, 5), **flags, delimiter="|")) == expected
    for wrong in ({"user_column": "5"}, {"user_column": "1"}, {"user_column": "0"}):
        with pytest.raises(DataError, match="columns"):
            datasets.load(path, rating_range=(1, 5), **flags | wrong)
    with pytest.raises(DataError, match="is not a number; the line looks like a header"):
        datasets.load(
            put(tmp_path, "c.csv", "a,b,c\nann,x,3\n"),
            rating_range=(1, 5),
            **dict(zip(flags, "123", strict=True)),
        )


def test_a_delimiter_by_flag(tmp_path):
    for written, given in (
        ("\t", "\\t"),
        ("\t", "tab"),
        ("~", "~"),
        ("§", "§"),
        ("||", "||"),
        (" ", " "),
    ):
        path = put(tmp_path, "a.txt", "user,item,rating\n1,10,3\n2,11,4\n".replace(",", written))
        assert triples(datasets.load(path, rating_range=(1, 5), delimiter=given)) == [
            (1, 10, 3),
            (2, 11, 4),
        ]
    for wrong in ("", '"', "\n", "\x1f"):
        with pytest.raises(UsageError, match="is no delimiter"):
            datasets.load(path, rating_range=(1, 5), delimiter=wrong)


def test_official_file_names_are_read_by_path(tmp_path):
    for file in ("u.data", "ua.base"):
        path = put(tmp_path, file, "1\t10\t3\t8\n2\t11\t4\t8\n")
        assert len(datasets.load(path, rating_range=(1, 5))) == 2
    for text in ("1::10::3::8\n2::11::4::8\n", "1,10,3\n2,11,4\n"):
        assert len(datasets.load(put(tmp_path, "ratings.dat", text), rating_range=(1, 5))) == 2


def test_a_range_must_be_declared_and_can_be_overridden(tmp_path):
    path = put(tmp_path, "a.csv", "user,item,rating\n1,10,3\n2,11,4\n")
    with pytest.raises(
        UsageError, match=r"range of a file must be declared.*\n.*\nfix: .*--rating-range 1 5"
    ):
        datasets.load(path)
    put(tmp_path, "ml-1m/ratings.dat", "1::10::3::8\n2::11::9::8\n")
    assert datasets.load("ml-1m", data_dir=tmp_path, rating_range=(0, 10)).rating_range == (0, 10)


def test_what_is_missing_says_where_it_looked(tmp_path, monkeypatch):
    with pytest.raises(DataError) as caught:
        datasets.load("ml-10m", data_dir=tmp_path)
    for file in DATASETS["ml-10m"].files:
        assert str(tmp_path / file) in caught.value.where
    assert "GroupLens" in caught.value.fix
    monkeypatch.delenv("DPMF_DATA", raising=False)
    with pytest.raises(DataError, match="DPMF_DATA"):
        datasets.load("ml-10m")
    with pytest.raises(DataError, match=r"no data set or file 'ml-2m'\nwhere: looked for .*ml-2m"):
        datasets.load("ml-2m")
    with pytest.raises(DataError, match="the folder is no data set"):
        datasets.load(tmp_path)
    put(tmp_path, "ml-100k/u.data", "1\t10\t3\t8\n")
    with pytest.raises(UsageError, match=r"no official split 'u9'\n.*ua, ub"):
        datasets.load("ml-100k", data_dir=tmp_path, split="u9")
    with pytest.raises(UsageError, match="its own layout"):
        datasets.load("ml-100k", data_dir=tmp_path, user_column="who")
    with pytest.raises(UsageError, match="no slice"):
        datasets.load("ml-100k", data_dir=tmp_path, slice="paper002")


def test_blocks_cut_anywhere_read_the_same(tmp_path, monkeypatch):
    rows = [(user, item, 1 + (user + item) % 5) for user in range(20) for item in range(7)]
    path = put(tmp_path, "ratings.dat", "".join(f"{u}::{i}::{v}::0\n" for u, i, v in rows))
    for block in (16, 17, 19, 64):
        monkeypatch.setattr("dpmf_jax.data.text.BLOCK", block)
        assert triples(datasets.load(path, rating_range=(1, 5))) == sorted(rows)


def test_a_delimiter_is_found_wherever_a_block_ends(tmp_path):
    for size in range(1, 9):
        with lines.opened(put(tmp_path, "x", "1::22::333::4\n5::6::7::8")) as file:
            blocks = lines.Blocks(file, tmp_path / "x", "::", [])
            assert (
                b"".join(bytes(blocks.read(size)) for _ in range(40))
                == b"1\x1f22\x1f333\x1f4\n5\x1f6\x1f7\x1f8"
            )


@pytest.fixture
def lent(monkeypatch):
    """Of every stream that the parser has been given: weak references to it and to its blocks."""
    found, blocks = [], lines.Blocks
    monkeypatch.setattr(lines, "Blocks", lambda *given: found.append(given[3]) or blocks(*given))
    return found


def alive(references):
    return [reference for reference in references if reference() is not None]


@pytest.mark.parametrize(
    "keep", [None, lambda ids: np.ones(len(ids), bool)], ids=["whole", "rows of some users"]
)
@pytest.mark.parametrize("last", ["1,7,5", "1,7,x"], ids=["read", "refused"])
def test_arrow_has_nothing_of_pythons_when_a_file_has_been_read(
    tmp_path, monkeypatch, lent, keep, last
):
    """Its threads let go of streams when they come to it, and a process that ends before they have
    is aborted.
    """
    path = put(tmp_path, "ratings.csv", "user,item,rating\n" + "1,2,3\n" * 200 + f"{last}\n")
    monkeypatch.setattr("dpmf_jax.data.text.BLOCK", 64)
    errors = []
    for _ in range(50):
        try:
            read_text(path, Format(user=0, item=1, rating=2, header=True), keep)
        except DataError as error:
            errors.append(error)
        assert len(lent[-1]) > 5
        assert alive(lent[-1]) == []
    assert len(errors) == (50 if last == "1,7,x" else 0)


@pytest.mark.parametrize("fails", [False, True])
def test_what_arrow_gives_back_late_is_waited_for(tmp_path, lent, fails):
    def parse(stream):
        kept = [stream, stream.read_buffer(8)]
        threading.Timer(0.2, kept.clear).start()
        if fails:
            raise ValueError("not read")

    with (
        lines.opened(put(tmp_path, "x", "1,2,3\n4,5,6\n")) as file,
        contextlib.ExitStack() as stack,
    ):
        if fails:
            stack.enter_context(pytest.raises(ValueError, match="not read"))
        lines.parsed(file, tmp_path / "x", ",", parse)
    [references] = lent
    assert len(references) == 2
    assert alive(references) == []


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("text", [False, True])
def test_convert_and_load_again(tmp_path, ending, text):
    rows = (
        'user,item,rating\n"a, ""b""",é,3.5\nb,é,1\nb,07,5\n'
        if text
        else "user,item,rating\n1,9,3.5\n2,9,1\n2,8,5\n"
    )
    source = put(tmp_path, "source.csv", rows)
    written = export.convert(source, tmp_path / "new" / f"out.{ending}", rating_range=(0.5, 5))
    # parquet files of our own declare it themselves
    declared = None if ending == "parquet" else (0.5, 5)
    again = datasets.load(tmp_path / "new" / f"out.{ending}", rating_range=declared)
    assert again.sha256() == written.sha256()
    assert again.rating_range == (0.5, 5)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"out.{ending}"]
    with pytest.raises(UsageError, match="exists"):
        export.convert(source, tmp_path / "new" / f"out.{ending}", rating_range=(0.5, 5))


def test_convert_writes_nothing_when_it_fails(tmp_path):
    source = put(tmp_path, "source.csv", "user,item,rating\n1,9,nan\n2,8,1\n")
    with pytest.raises(DataError):
        export.convert(source, tmp_path / "new" / "out.csv", rating_range=(1, 5))
    with pytest.raises(UsageError, match="ends in"):
        export.convert(source, tmp_path / "out.json", rating_range=(1, 5))
    assert [path.name for path in tmp_path.iterdir()] == ["source.csv"]
    source = put(tmp_path, "source.csv", "user,item,rating\n1,9,3\n2,8,1\n")
    taken = tmp_path / "taken.csv"
    taken.mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        export.convert(source, taken, rating_range=(1, 5), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.csv", "taken.csv"]


def test_parquet_by_usual_names_and_by_flags(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(
        pa.table({"movieId": ["x", "y"], "userId": [2**40, 1], "rating": [3, 4], "z": [1, 2]}), path
    )
    expected = [(1, "y", 4), (2**40, "x", 3)]
    assert triples(datasets.load(path, rating_range=(1, 5))) == expected
    with pytest.raises(UsageError, match="range"):
        datasets.load(path)
    assert triples(datasets.load(path, rating_range=(1, 5), rating_column="z"))[0] == (1, "y", 2)
    with pytest.raises(DataError, match="no user column who"):
        datasets.load(path, rating_range=(1, 5), user_column="who")
    whole = path.read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="parquet"):
            datasets.load(path, rating_range=(1, 5))


def test_list_names_what_is_there(tmp_path):
    put(tmp_path, "ml-1m/ratings.dat", "1::10::3::8\n2::11::4::8\n")
    rows = {row["name"]: row for row in datasets.list_datasets(tmp_path)}
    assert rows.keys() == {"synthetic", "lifelike", *DATASETS}
    assert [name for name, row in rows.items() if row["path"]] == ["ml-1m"]
    assert rows["ml-100k"]["splits"] == ["u1", "u2", "u3", "u4", "u5", "ua", "ub"]
    assert all(row["how_to_get"] for row in rows.values())


def test_check_knows_that_a_file_is_another_one(tmp_path):
    put(tmp_path, "ml-100k/u.data", "1\t10\t3\t8\n2\t11\t4\t8\n")
    report = check("ml-100k", data_dir=tmp_path)
    assert report["ok"]
    assert report["files"][0]["known"] is False
    assert report["triples_known"] is False
    assert report["histogram"] == {"3": 1, "4": 1}


@pytest.mark.slow
def test_the_benchmark_of_reading_has_a_row_for_each_contender():
    from experiments.bench import read

    report = read.run(5000, 2, num_users=300, num_items=200)
    assert [row["contender"] for row in report["rows"]] == list(read.STAGES)
    assert all(row["ms"] >= row["fastest_ms"] > 0 <= row["spread_ms"] for row in report["rows"])
    assert all(row["peak_mb"] > 10 for row in report["rows"])
    assert report["rows"][-1]["ratio"] == 1


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ml-100k", (100_000, 943, 1682)),
        ("ml-1m", (1_000_209, 6040, 3706)),
        ("anime-5000", (419_943, 5000, 7390)),
        ("netflix-52", (245_189, 95_029, 52)),
        ("libimseti-9k", (68_306, 9223, 4087)),
    ],
)
def test_real_files(data_dir, name, size):
    if not (data_dir / name).is_dir():
        pytest.skip(f"{name} is not in {data_dir}: {DATASETS[name].source}")
    ratings = datasets.load(name, data_dir=data_dir)
    assert isinstance(ratings, Ratings)
    assert (len(ratings), ratings.num_users, ratings.num_items) == size
    assert ratings.sha256() == DATASETS[name].triples
    report = check(name, data_dir=data_dir)
    assert report["ok"]
    assert report["triples_known"]
    assert report["files"][0]["known"] in (True, None)
    assert sum(report["histogram"].values()) == len(ratings)
