"""The pages: their Python runs as it stands, their commands are ones that `dpmf` knows, what they
link to is there, and the first of them is short.
"""

import math
import re
import shlex
from pathlib import Path

import pandas
import pytest

import dpmf_jax
from experiments.cli import main as cli
from tests.cases import CHECKOUT

PAGES = sorted(
    str(path.relative_to(CHECKOUT))
    for path in (CHECKOUT, *(CHECKOUT / "docs" / name for name in ("", "results", "tutorials")))
    for path in path.glob("*.md")
)


def blocks(page, *languages):
    """The code of the page's blocks in one of these languages; "" is a block that names none."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```([^\n`]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for language, code in found if language in languages]


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


def commands(page):
    """The words of every `dpmf` command in the page's blocks, without what the shell does."""
    for block in blocks(page, "", "console", "sh"):
        for line in block.splitlines():
            for part in re.split(r"&&|;", line.partition(" #")[0]):
                words = shlex.split(part)
                if words[:1] == ["dpmf"] and "..." not in words:
                    yield words[1:]


def test_the_first_page_is_a_screen_and_a_half():
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """A reader's own mechanism: that of docs/your_mechanism.md, under the names of the pages."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/your_mechanism.md", "python")
    Path("item_means.py").write_text(code)
    Path("mine.py").write_text(f"{code}\nmechanism = item_means\n")


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_ones_that_the_program_knows(page):
    for words in commands(page):
        name, rest = cli._split(words)
        cli.parse(name, cli._program(name)[1], rest)


def priced(page):
    """(words, the prices that the page has beside them) of each `dpmf epsilon` that has some."""
    found = []
    for block in blocks(page, ""):
        for line in block.splitlines():
            command, _, said = line.partition(" #")
            if command.startswith("dpmf epsilon") and (told := re.findall(r"\d+\.\d{4}", said)):
                found.append(pytest.param(shlex.split(command)[1:], told, id=command.strip()))
    return found


@pytest.mark.seconds
@pytest.mark.parametrize(("words", "told"), priced("docs/commands.md"))
def test_what_a_price_is_said_to_be_is_printed(words, told, books, capsys):
    assert cli.main(words) == 0
    printed = re.findall(r"\d+\.\d{6}", capsys.readouterr().out)
    rounded_up = {f"{math.ceil(float(one) * 1e4 - 1e-6) / 1e4:.4f}" for one in printed}
    assert set(told) <= rounded_up


def test_commands_are_found_in_the_pages():
    assert len([*commands("docs/commands.md")]) > 20
    assert len([*commands("README.md")]) == 3


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_there(page):
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, place = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        file = (CHECKOUT / page).parent / path if path else CHECKOUT / page
        assert file.exists(), link
        if place:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert place in {_anchor(heading) for heading in headings}, link


def _anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.data
@pytest.mark.seconds
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(("page", "least"), [("README.md", 1), ("docs/python.md", 3)])
def test_the_python_of_a_page_runs(page, least, names, capsys):
    found = blocks(page, "python")
    assert len(found) >= least
    for code in found:
        exec(compile(code, page, "exec"), names)
    assert "proved" in capsys.readouterr().out
    assert Path("my-model/model.json").exists()


def test_every_row_of_the_table_of_features_has_a_test_that_is_there():
    text = (CHECKOUT / "docs" / "features.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    tests = re.findall(r"^\d+\. `([^`]+)::([^`]+)`$", text, re.MULTILINE)
    assert len(rows) == len(tests) > 15
    for row in rows:
        assert len(row) == 6, row
        assert all(cell.strip() for cell in row), row
    for file, name in tests:
        assert f"\ndef {name}(" in (CHECKOUT / file).read_text(encoding="utf-8"), name


def test_the_gallery_has_every_figure_of_the_papers():
    text = (CHECKOUT / "docs" / "gallery.md").read_text(encoding="utf-8")
    results = CHECKOUT / "docs" / "results"
    drawn = {str(path.relative_to(results)) for path in results.glob("*/*.svg")}
    assert drawn == set(re.findall(r"\(results/([^)]+\.svg)\)", text))
