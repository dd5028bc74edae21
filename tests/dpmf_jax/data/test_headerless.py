"""Files without a header: digits are positions, no row is lost, no column is permuted, or the file
is refused.
"""

import io
import tempfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pyarrow
import pyarrow.parquet
import pytest

from dpmf_jax.data import datasets
from dpmf_jax.errors import DataError, UsageError
from tests.cases.fit import run

pytestmark = pytest.mark.usefixtures("quick_compilation")

POSITIONS = {"user_column": "1", "item_column": "2", "rating_column": "3"}


def read(path, text, **options):
    """The triples that are read of a file with this text, as strings and a float, sorted."""
    path.write_text(text)
    ratings = datasets.load(path, rating_range=(1, 10), **options)
    user, item = ratings.users[ratings.user], ratings.items[ratings.item]
    return sorted(zip(map(str, user), map(str, item), map(float, ratings.value), strict=True))


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("1 1 2\n2 7 3\n", "123", [("1", "1", 2), ("2", "7", 3)]),
        ("1::0054890::9::0\n2::0054891::8::0\n", "123", [("1", "0054890", 9), ("2", "0054891", 8)]),
        ("1,2,3\n4,5,6\n7,8,9\n", "123", [("1", "2", 3), ("4", "5", 6), ("7", "8", 9)]),
        ("3 1 2\n4 5 6\n", "123", [("3", "1", 2), ("4", "5", 6)]),
        ("3 1 2\n4 5 6\n", "312", [("2", "3", 1), ("6", "4", 5)]),
        ("ann,dune,4\nbob,emma,5\n", "123", [("ann", "dune", 4), ("bob", "emma", 5)]),
        ("user,dune,4\nbob,emma,5\n", "123", [("bob", "emma", 5), ("user", "dune", 4)]),
        (
            "user,item,rating\nann,dune,4\nbob,emma,5\n",
            "213",
            [("dune", "ann", 4), ("emma", "bob", 5)],
        ),
    ],
)
def test_digits_are_positions_whatever_the_first_line_holds(tmp_path, text, columns, expected):
    given = dict(zip(POSITIONS, columns, strict=True))
    assert read(tmp_path / "mine.txt", text, **given) == expected


@pytest.mark.parametrize("mark", [" ", ",", "\t", ";", "|", "::"])
def test_no_header_reads_the_first_line_in_the_usual_order(tmp_path, mark):
    text = mark.join("123") + "\n" + mark.join("456") + "\n"
    assert read(tmp_path / "mine.txt", text, no_header=True) == [("1", "2", 3), ("4", "5", 6)]
    with pytest.raises(DataError, match="no header") as caught:
        read(tmp_path / "mine.txt", text)
    assert "--no-header" in caught.value.fix


def test_what_contradicts_itself_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no column 'who'"):
        read(tmp_path / "mine.txt", "1,2,3\n4,5,6\n", no_header=True, user_column="who")
    with pytest.raises(DataError, match="no column 0"):
        read(
            tmp_path / "mine.txt",
            "1,2,3\n4,5,6\n",
            user_column="0",
            item_column="1",
            rating_column="2",
        )
    with pytest.raises(UsageError, match="its own layout"):
        datasets.load("ml-100k", no_header=True)


IDS = st.lists(
    st.sampled_from(["1", "2", "3", "10", "007", "ann", "bob", "user", "rating"]),
    min_size=2,
    max_size=4,
    unique=True,
)


@pytest.mark.seconds
@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    st.data(),
    IDS,
    IDS,
    st.sampled_from([" ", ",", "\t", ";", "|", "::"]),
    st.permutations(range(3)),
    st.sampled_from(
        [
            None,
            ("user", "item", "rating"),
            ("who", "what", "points"),
            ("1", "2", "3"),
            ("3", "1", "2"),
        ]
    ),
    st.sampled_from(["positions", "names", "nothing", "no header", "no header, positions"]),
)
def test_a_table_is_read_as_it_was_written_or_refused_with_a_fix(
    data, users, items, mark, order, header, say
):
    pairs = [(user, item) for user in users for item in items]
    rows = [(*pair, data.draw(st.integers(1, 5))) for pair in data.draw(st.permutations(pairs))]
    lines = [*([header] if header else []), *rows]
    text = io.StringIO()
    for row in lines:
        text.write(mark.join(str(row[at]) for at in order) + "\n")
    # no header then, but a rating as the others
    numeric = header is not None and header[0].isdigit()
    hypothesis.assume(not numeric or say in ("positions", "no header, positions"))
    if numeric:
        user, item, value = header
        hypothesis.assume((user, item) not in pairs)
        rows.append((user, item, int(value)))
    options = {}
    if say in ("positions", "no header, positions"):
        options = dict(
            zip(POSITIONS, (str(order.index(column) + 1) for column in range(3)), strict=True)
        )
    elif say == "names":
        options = dict(zip(POSITIONS, header or ("user", "item", "rating"), strict=True))
    elif say == "no header":
        hypothesis.assume(header is None and list(order) == [0, 1, 2])
        options = {"no_header": True}
    if say == "no header, positions":
        hypothesis.assume(header is None or numeric)
        options["no_header"] = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            got = read(Path(folder) / "mine.txt", text.getvalue(), **options)
        except DataError as error:
            assert error.fix  # noqa: PT017  (most tables are read)
            assert not say.startswith("no header")
            assert not numeric
            return
    assert got == sorted((user, item, float(value)) for user, item, value in rows)


def test_digits_are_positions_in_parquet_too(tmp_path):
    """Whatever the columns' names are, digits among them."""
    table = pyarrow.table({"2": [3.0, 6.0], "3": ["u1", "u2"], "1": ["a", "b"]})
    pyarrow.parquet.write_table(table, tmp_path / "mine.parquet")
    given = dict(zip(POSITIONS, "231", strict=True))
    ratings = datasets.load(tmp_path / "mine.parquet", rating_range=(1, 10), **given)
    assert ratings.users[ratings.user].tolist() == ["u1", "u2"]
    assert ratings.items[ratings.item].tolist() == ["a", "b"]
    assert ratings.value.tolist() == [3.0, 6.0]


@pytest.mark.seconds
def test_no_header_goes_with_every_command_that_reads_ratings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [(user, item, 1 + (user * item) % 9) for user in range(1, 7) for item in range(1, 6)]
    Path("mine.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    ends = ("mine.txt", "--rating-range", "1", "10", "--no-header")
    code, out, err = run(capsys, "data", "check", *ends, "--json")
    assert code == 0, err
    assert f'"rows": {len(rows)}' in out
    code, _, err = run(capsys, "data", "convert", "mine.txt", "mine.parquet", *ends[1:])
    assert code == 0, err
    assert len(datasets.load("mine.parquet", rating_range=(1, 10))) == len(rows)
    fit = (
        "fit",
        *ends,
        "--steps",
        "2",
        "--controls",
        "none",
        "--test-fraction",
        "0",
        "--seed",
        "0",
        "--out",
        "model",
    )
    code, out, err = run(capsys, *fit, "--json")
    assert code in (0, 2), err
    assert f"{len(rows)} ratings" in out
    code, out, err = run(capsys, "evaluate", "model", "--data", "mine.txt", "--no-header", "--json")
    assert code == 0, err
    assert f'"ratings": {len(rows)}' in out
    code, out, err = run(capsys, "audit", *ends, "--only", "density", "--json")
    assert code == 0, err
    for words in (
        ("data", "check", *ends[:-1]),
        (*fit[:5], *fit[6:-1], "other"),
    ):  # and without it none guesses
        code, _, err = run(capsys, *words)
        assert code != 0
        assert "fix: add --no-header" in err
