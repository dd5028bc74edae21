"""The Python of the pages runs as it stands."""

import re
from pathlib import Path

import pandas
import pytest

import dpmf_jax
from tests.cases import CHECKOUT

pytestmark = [pytest.mark.usefixtures("quick_compilation"), pytest.mark.data, pytest.mark.seconds]


def blocks(page):
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(books, tmp_path, monkeypatch, data_dir):
    """What a reader has when the page begins: ratings in ~/ratings, and a shop's table of them."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "ratings").symlink_to(Path(data_dir).resolve())
    monkeypatch.setenv("HOME", str(home))
    ratings = dpmf_jax.load("ml-100k", data_dir=data_dir)
    people = [f"user-{user}" for user in ratings.users] + ["ada"]
    frame = pandas.DataFrame(
        {
            "user": [people[user] for user in ratings.user],
            "item": ratings.items[ratings.item],
            "rating": ratings.value,
        }
    )
    frame.loc[len(frame)] = ["ada", 50, 5.0]
    return {"frame": frame, "all_users": people, "all_items": ratings.items}


def test_the_python_of_the_readme_runs(names, capsys):
    found = blocks("README.md")
    assert len(found) >= 2
    for code in found:
        exec(compile(code, "README.md", "exec"), dict(names))
    told = capsys.readouterr().out
    assert told.count("proved") >= 2
    assert Path("my-model/model.json").exists()
