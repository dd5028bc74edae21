"""Files of ratings as other libraries lay them out are read as they are."""

import pytest

from dpmf_jax import load
from dpmf_jax.errors import DataError

ROWS = [(196, 242, 3.0, 881250949), (186, 302, 3.0, 891717742), (22, 242, 1.0, 878887116)]
RANGE = {"rating_range": (1, 5)}


def written(folder, name, header, delimiter, rows=ROWS):
    path = folder / name
    lines = [header] * bool(header)
    path.write_text("\n".join([*lines, *(delimiter.join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "header", "delimiter", "options"),
    [
        ("lenskit.csv", "user_id,item_id,rating,timestamp", ",", {}),
        ("lenskit-0.csv", "user,item,rating,timestamp", ",", {}),
        (
            "recbole.inter",
            "user_id:token\titem_id:token\trating:float\ttimestamp:float",
            "\t",
            {},
        ),
        ("surprise.data", "", "\t", {"no_header": True}),
        ("surprise.csv", "", ",", {"no_header": True}),
        ("surprise.dat", "", "::", {"no_header": True}),
    ],
)
def test_layouts_of_other_libraries(tmp_path, name, header, delimiter, options):
    ratings = load(written(tmp_path, name, header, delimiter), **RANGE, **options)
    users, items = ratings.users[ratings.user], ratings.items[ratings.item]
    found = list(zip(users.tolist(), items.tolist(), ratings.value.tolist(), strict=True))
    assert [tuple(map(float, row)) for row in found] == [row[:3] for row in ROWS]


def test_interactions_of_recbole_without_ratings_are_what_was_seen(tmp_path):
    header = "user_id:token\titem_id:token"
    path = written(tmp_path, "seen.inter", header, "\t", [row[:2] for row in ROWS])
    assert load(path, implicit=True).value.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(DataError, match="two columns and no ratings"):
        load(path, **RANGE)


def test_a_column_that_ends_like_a_type_keeps_its_name(tmp_path):
    path = written(tmp_path, "own.csv", "user,item,float", ",", [row[:3] for row in ROWS])
    with pytest.raises(DataError, match="there is no rating column"):
        load(path, **RANGE)
    assert len(load(path, **RANGE, rating_column="float")) == 3
