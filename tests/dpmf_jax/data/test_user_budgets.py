"""Budgets of users from a file: who is not in it has the usual one, and every fault has a line."""

import numpy as np
import pytest

from dpmf_jax.data import user_budgets
from dpmf_jax.errors import DataError

IDS = np.array([3, 5, 8, 9])


def read(tmp_path, text, ids=IDS):
    path = tmp_path / "budgets.csv"
    path.write_bytes(text.encode())
    return user_budgets.read(path, ids, others=4.0)


@pytest.mark.parametrize(
    "text",
    [
        "user,epsilon\n9,0.5\n3,8\n",
        "\ufeffUser, Epsilon\r\n9, 0.5\r\n\r\n3,8e0\r\n",
        '"user","epsilon"\n"9","0.5"\n"3","8"',
    ],
)
def test_budgets_are_in_the_order_of_the_catalogue(tmp_path, text):
    np.testing.assert_array_equal(read(tmp_path, text), [8.0, 4.0, 4.0, 0.5])


def test_ids_may_be_text(tmp_path):
    found = read(tmp_path, "user,epsilon\nann,1\n", np.array(["ann", "bob"]))
    np.testing.assert_array_equal(found, [1.0, 4.0])


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("3,1\n5,2\n", "names no columns user and epsilon", "line 1"),
        ("user,budget\n3,1\n", "names no columns user and epsilon", "line 1"),
        ("user,epsilon\n3,1\n4,1\n", "user 4 is not in the catalogue", "line 3"),
        ("user,epsilon\n3,1\n\n3,2\n", "user 3 is there twice, first in line 2", "line 4"),
        ("user,epsilon\n3,0\n", "must be a positive number, got '0'", "line 2"),
        ("user,epsilon\n3,-1\n", "must be a positive number", "line 2"),
        ("user,epsilon\n3,inf\n", "must be a positive number", "line 2"),
        ("user,epsilon\n3,nan\n", "must be a positive number", "line 2"),
        ("user,epsilon\n3,much\n", "must be a positive number, got 'much' for user 3", "line 2"),
        ("user,epsilon\n3,1,2\n", "a line of 3 cells", "line 2"),
        ("user,epsilon\n", "no budget of any user", ""),
        ("", "no budget of any user", ""),
        ('user,epsilon\n"3,1\n', "cannot be read", ""),
    ],
)
def test_every_fault_says_what_and_where(tmp_path, text, what, where):
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert what in caught.value.what
    assert "budgets.csv" in caught.value.where
    assert caught.value.where.endswith(where)
    assert caught.value.fix


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        user_budgets.read(tmp_path / "none.csv", IDS, others=1.0)
