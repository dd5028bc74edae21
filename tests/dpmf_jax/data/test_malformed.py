"""Bad files get a DataError that names the line and the fix; no byte string gets anything but
Ratings or DataError.

`python -m tests.dpmf_jax.data.test_malformed` prints the table of malformed files with the message
that each one gets.
"""

import gzip
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dpmf_jax.data import datasets
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.data.report import check
from dpmf_jax.errors import DataError

GOOD = b"user,item,rating\n1,10,3\n2,10,4\n2,11,5\n"
HUNDRED = b"1\t10\t3\t88\n2\t10\t4\t88\n2\t11\t5\t88\n"
COLONS = b"1::10::3::88\n2::10::4::88\n2::11::5::88\n"
ANIME = b"user_id,anime_id,rating\n1,10,3\n2,10,-1\n2,11,5\n"
MOVIES = b"1:\n6,3,2005-09-06\n7,4,2005-09-06\n2:\n6,5,2005-09-06\n"


class Bad(NamedTuple):
    """A malformed file: its name, its bytes, what the message must contain, and the line it must
    name.
    """

    name: str
    data: bytes
    says: str
    line: int | None = None
    dataset: str | None = (
        None  # read by the name of a data set, in the place where that keeps its ratings
    )


PLACES = {
    "ml-100k": "ml-100k/u.data",
    "ml-1m": "ml-1m/ratings.dat",
    "ml-20m": "ml-20m/ratings.csv",
    "anime": "anime/rating.csv",
    "libimseti": "libimseti/ratings.dat",
    "netflix": "netflix/combined_data_1.txt",
}

MALFORMED = [
    Bad("empty file", b"", "the file is empty"),
    Bad("blank lines only", b"\n\r\n\n", "the file is empty"),
    Bad("header only", b"user,item,rating\n", "there is no rating"),
    Bad("not a number", GOOD + b"3,10,nan\n", "the rating is not a number", 5),
    Bad("infinite", GOOD + b"3,10,-inf\n", "the rating is infinite", 5),
    Bad("infinite in float32", GOOD + b"3,10,1e300\n", "the rating is infinite", 5),
    Bad("text for a rating", GOOD + b"3,10,great\n", "the rating 'great' is not a number", 5),
    Bad("hexadecimal rating", GOOD + b"3,10,0x3\n", "the rating '0x3' is not a number", 5),
    Bad("missing rating", GOOD + b"3,10,\n", "the rating '' is not a number", 5),
    Bad("missing user", GOOD + b",10,3\n", "the user id is empty", 5),
    Bad("missing item", GOOD + b"3, ,3\n", "the item id is empty", 5),
    Bad("out of range", GOOD + b"3,10,6\n", "rating 6 is outside the declared range 1 to 5", 5),
    Bad(
        "out of range after blank lines", b"\n\n" + GOOD + b"\n\n3,10,0\n", "rating 0 is outside", 9
    ),
    Bad("duplicate", GOOD + b"2,10,4\n", "user 2 rates item 10 more than once", 5),
    Bad("one user", b"user,item,rating\n1,10,3\n1,11,4\n", "there is only one user, 1"),
    Bad("one item", b"user,item,rating\n1,10,3\n2,10,4\n", "there is only one item, 10"),
    Bad(
        "too few columns", b"user,item,rating\n1,10,3\n2,10\n", "2 columns where 3 are expected", 3
    ),
    Bad("too many columns", GOOD + b"3,1,2,3\n", "4 columns where 3 are expected", 5),
    Bad("blank that is not blank", GOOD + b"  \n3,1,2\n", "1 columns where 3 are expected", 5),
    Bad("no delimiter", b"hello\nworld\n", "no delimiter is seen in 'hello'", 1),
    Bad("delimiter changes", b"user,item,rating\n1;10;3\n2;10;4\n", "delimited by ';', not ','", 2),
    Bad(
        "decimal comma",
        b"user;item;rating\n1;10;3,5\n2;11;4\n",
        "the rating '3,5' is not a number",
        2,
    ),
    Bad("no header", b"1,10,3\n2,10,4\n", "it is no header", 1),
    Bad("two columns", b"user,item\n1,10\n", "who has seen what", 1),
    Bad("runs of spaces", b"1  10 3\n2  11 4\n", "runs of spaces", 1),
    Bad("missing column", b"user,item,when\n1,10,3\n", "there is no rating column", 1),
    Bad("column twice", b"user,user,item,rating\n1,2,3,4\n", "more than one user column", 1),
    Bad("quote not closed", b'user,item,rating\n1,10,3\n"2,10,4\n', "a quote is not closed", 3),
    Bad(
        "not UTF-8",
        "user,item,rating\njörg,10,3\nb,11,4\n".encode("latin-1"),
        "is not UTF-8 text",
        2,
    ),
    Bad("UTF-16", "user,item,rating\n1,10,3\n2,11,4\n".encode("utf-16"), "the file is UTF-16"),
    Bad("NUL bytes", GOOD + b"3,1\x000,3\n", "NUL bytes"),
    Bad("control character", GOOD + b"3\x07,10,3\n", "has a control character", 5),
    Bad("binary", bytes(range(256)) * 9, "not text"),
    Bad("endless id", GOOD + b"9" * 1000 + b",10,3\n", "has 1,000 characters", 5),
    Bad("gzip cut short", gzip.compress(GOOD)[:-9], "damaged or cut short"),
    Bad(
        "gzip damaged",
        gzip.compress(GOOD)[:14] + b"\xff\xff" + gzip.compress(GOOD)[16:],
        "damaged or cut short",
    ),
    Bad("gzip and more", gzip.compress(GOOD) + b"more", "damaged or cut short"),
    Bad("zip", b"PK\x03\x04" + GOOD, "a zip archive"),
    Bad("parquet.parquet", b"PAR1" + GOOD + b"PAR1", "no parquet"),
    Bad("text.parquet", GOOD, "no parquet"),
    Bad(
        "header where none is expected",
        b"user\titem\trating\ttime\n" + HUNDRED,
        "looks like a header",
        1,
        "ml-100k",
    ),
    Bad(
        "wrong delimiter", HUNDRED.replace(b"\t", b","), "delimited by ',', not '\\t'", 1, "ml-100k"
    ),
    Bad(
        "string id",
        HUNDRED + b"ann\t10\t3\t88\n",
        "the user id 'ann' is not an integer",
        4,
        "ml-100k",
    ),
    Bad(
        "string id after a negative one",
        HUNDRED + b"-5\t10\t3\t88\nann\t10\t3\t88\n",
        "the user id 'ann' is not an integer",
        5,
        "ml-100k",
    ),
    Bad(
        "id of 20 digits", HUNDRED + b"9" * 20 + b"\t10\t3\t88\n", "is not an integer", 4, "ml-100k"
    ),
    Bad("no timestamp", HUNDRED + b"3\t10\t3\n", "3 columns where 4 are expected", 4, "ml-100k"),
    Bad("half stars in 1M", COLONS + b"3::10::0.5::8\n", "rating 0.5 is outside", 4, "ml-1m"),
    Bad("three colons", COLONS + b"3:::10::3::8\n", "':::' is no delimiter", 4, "ml-1m"),
    Bad("one colon", COLONS + b"3:10::3::8\n", "3 columns where 4 are expected", 4, "ml-1m"),
    Bad("commas for colons", COLONS.replace(b"::", b","), "delimited by ',', not '::'", 1, "ml-1m"),
    Bad(
        "csv without header",
        b"1,10,3,88\n2,10,4,88\n",
        "there is no header with a column 'userId'",
        1,
        "ml-20m",
    ),
    Bad("minus one twice", ANIME + b"1,10,-2\n", "rating -2 is outside", 5, "anime"),
    Bad(
        "only minus ones",
        ANIME.replace(b"3", b"-1").replace(b"5", b"-1"),
        "there is no rating",
        None,
        "anime",
    ),
    Bad("colons for commas", COLONS, "delimited by '::', not ','", 1, "libimseti"),
    Bad(
        "rating before movie", b"6,3,2005-09-06\n" + MOVIES, "comes before any movie", 1, "netflix"
    ),
    Bad(
        "movie is a name",
        MOVIES + b"Toy Story:\n8,3,2005-09-06\n",
        "neither a rating nor a movie",
        6,
        "netflix",
    ),
    Bad(
        "Netflix rating is text",
        MOVIES + b"8,x,2005-09-06\n",
        "neither a rating nor a movie",
        6,
        "netflix",
    ),
    Bad("Netflix out of range", MOVIES + b"8,6,2005-09-06\n", "rating 6 is outside", 6, "netflix"),
    Bad(
        "Netflix duplicate",
        MOVIES + b"6,4,2005-09-06\n",
        "user 6 rates item 2 more than once",
        6,
        "netflix",
    ),
    Bad("Netflix movies only", b"1:\n2:\n", "there is no rating", None, "netflix"),
]


def put(bad: Bad, folder: Path) -> tuple[tuple[Any], dict[str, Any], Path]:
    """Writes the file; the arguments of load, and the path."""
    if bad.dataset:
        path = folder / PLACES[bad.dataset]
        arguments = (bad.dataset,), {"data_dir": folder}
    else:
        path = folder / (bad.name if "." in bad.name else f"{bad.name}.csv".replace(" ", "-"))
        arguments = (path,), {"rating_range": (1, 5)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bad.data)
    return *arguments, path


def outcome(function: Any, *arguments: Any, **options: Any) -> tuple[Any, DataError | None]:
    try:
        return function(*arguments, **options), None
    except DataError as error:
        return None, error


@pytest.mark.parametrize("bad", MALFORMED, ids=lambda bad: bad.name.replace(" ", "-"))
def test_a_malformed_file_gets_an_error_with_line_and_fix(bad, tmp_path):
    arguments, options, path = put(bad, tmp_path)
    with pytest.raises(DataError) as caught:
        datasets.load(*arguments, **options)
    error = caught.value
    assert bad.says in error.what
    assert error.fix
    assert path.name in error.where
    assert len(str(error).splitlines()) == 3
    if bad.line is not None:
        assert f"line {bad.line}" in error.where.split(", which")[0].split(", ")


@pytest.mark.parametrize("bad", MALFORMED, ids=lambda bad: bad.name.replace(" ", "-"))
def test_check_reports_what_load_refuses(bad, tmp_path):
    arguments, options, _ = put(bad, tmp_path)
    report, error = outcome(check, *arguments, **options)
    if error is not None:  # no table at all
        assert bad.says in error.what
    else:
        assert not report["ok"]
        assert report["num_problems"] == len(report["problems"]) >= 1
        if bad.line is not None:
            assert any(
                f"line {bad.line}" in problem["where"].split(", ") for problem in report["problems"]
            )


def test_check_lists_every_bad_line(tmp_path):
    path = tmp_path / "many.csv"
    path.write_bytes(GOOD + b"\n3,10,x\n3,10\n3,10,9\n3,11,nan\n1,10,3\n")
    report = check(path, rating_range=(1, 5))
    assert [problem["where"].rsplit(" ", 1)[1] for problem in report["problems"]] == [
        "6",
        "7",
        "8",
        "9",
        "10",
    ]
    path.write_bytes(GOOD + b"\n3,10,9\n3,11,nan\n1,10,3\n")
    report = check(path, rating_range=(1, 5))
    lines = {problem["where"].rsplit(" ", 1)[1]: problem["what"] for problem in report["problems"]}
    assert lines.keys() == {"6", "7", "8"}
    assert "outside" in lines["6"]
    assert "not a number" in lines["7"]
    assert "more than once" in lines["8"]
    assert report["rows"] == 6
    assert report["duplicates"] == 1


READ = {
    "plain": GOOD,
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "CRLF": GOOD.replace(b"\n", b"\r\n"),
    "CR": GOOD.replace(b"\n", b"\r"),
    "blank lines": b"\n\n" + GOOD.replace(b"\n", b"\n\n") + b"\n\n",
    "no last line end": GOOD[:-1],
    "gzip": gzip.compress(GOOD),
    "gzip in two members": gzip.compress(GOOD[:20]) + gzip.compress(GOOD[20:]),
    "gzip, mark and CRLF": gzip.compress(b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n")),
    "quotes": b'"user","item","rating"\n"1","10",3\n2,10,"4"\n2,11,5\n',
    "blanks around": b"user , item, rating\n1 , 10, 3\n2, 10 , 4 \n 2,11,5\n",
    "tabs": GOOD.replace(b",", b"\t"),
    "semicolons": GOOD.replace(b",", b";"),
    "colons": GOOD.replace(b",", b"::"),
    "more columns, other order": b"when,rating,movieId,userId\n?,3,10,1\n\xff,4,10,2\n,5,11,2\n",
    "other names": b"User ID,anime_id,Score\n1,10,3\n2,10,4\n2,11,5\n",
}


@pytest.mark.parametrize("data", READ.values(), ids=READ.keys())
def test_what_must_simply_be_read(data, tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_bytes(data)
    ratings = datasets.load(path, rating_range=(1, 5))
    assert ratings.users.tolist() == [1, 2]
    assert ratings.items.tolist() == [10, 11]
    assert ratings.user.tolist() == [0, 1, 1]
    assert ratings.item.tolist() == [0, 0, 1]
    assert ratings.value.tolist() == [3, 4, 5]


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


TOKENS = [
    b"1",
    b"2",
    b"10",
    b"3",
    b"4.5",
    b"-1",
    b"nan",
    b"x",
    b"",
    b'"',
    b",",
    b",",
    b"\t",
    b"::",
    b":",
    b"\n",
    b"\n",
]
TOKENS += [
    b"\r\n",
    b"\r",
    b"\0",
    b"\xff",
    "é".encode(),
    b" ",
    b"user,item,rating\n",
    b"userId\tmovieId\trating\n",
    b"1:\n",
]
TOKENS += [
    b"1,10,3\n",
    b"2,11,4\n",
    b"1\t10\t3\t9\n",
    b"1::2::3::4\n",
    b"2::3::4::4\n",
    b"5,4,2005-01-01\n",
]
FILES = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(TOKENS), max_size=20).map(b"".join),
    st.lists(st.sampled_from(TOKENS), max_size=20).map(
        lambda tokens: b"user,item,rating\n1,10,3\n2,11,4\n" + b"".join(tokens)
    ),
    st.lists(st.sampled_from(TOKENS), max_size=20).map(lambda tokens: MOVIES + b"".join(tokens)),
)
NAMES = ["a.csv", "a.tsv", "a.parquet", "u.data", "ratings.dat", *PLACES]


@hypothesis.given(
    data=FILES, name=st.sampled_from(NAMES), wrapped=st.booleans(), cut=st.integers(0, 40)
)
@hypothesis.settings(max_examples=200)
def test_no_byte_string_makes_anything_but_ratings_or_a_data_error(
    folder, data, name, wrapped, cut
):
    if wrapped:
        data = gzip.compress(data, mtime=0)[: -cut or None]
    path = folder / PLACES.get(name, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    options = {"data_dir": folder} if name in PLACES else {"rating_range": (1, 5)}
    ratings, error = outcome(datasets.load, name if name in PLACES else path, **options)
    if error is not None:
        assert str(error).encode()
        assert error.where
        assert error.fix
    else:
        assert isinstance(ratings, Ratings)
        assert ratings.num_users >= 2
        assert ratings.num_items >= 2
        assert np.isfinite(ratings.value).all()
        assert (
            len(set(zip(ratings.user.tolist(), ratings.item.tolist(), strict=True)))
            == len(ratings)
            >= 1
        )
    report, refused = outcome(check, name if name in PLACES else path, **options)
    assert (error is None) == (refused is None and report["ok"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print("| malformed file | message |\n|---|---|")
        for bad in MALFORMED:
            arguments, options, path = put(bad, Path(folder))
            try:
                datasets.load(*arguments, **options)
            except DataError as error:
                message = (
                    str(error)
                    .replace(str(path.parent) + "/", "")
                    .replace("|", "\\|")
                    .replace("\n", "; ")
                )
                print(f"| {bad.name}{f' ({bad.dataset})' if bad.dataset else ''} | {message} |")


if __name__ == "__main__":
    main()
