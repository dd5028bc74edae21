"""`dpmf fit --user-budgets`: the statement has a line for every budget, the model nobody's."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cases.fit import CATALOGUE, RANGE, interrupted, resumed, run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

SOME = "user,epsilon\nu3,0.5\nu4,20\nu24,20\nu1,20\n"
FIT = ["fit", "mine.csv", *RANGE, *CATALOGUE, "--controls", "none", "--devices", "1"]
LINES = {  # of 25 users in the catalogue
    1: "one user, of 1 in the group, added or removed",
    21: "one user, of 21 in the group, added or removed",
    3: "one user, of 3 in the group, added or removed",
}


@pytest.fixture
def budgets():
    Path("budgets.csv").write_text(SOME)
    return ["--user-budgets", "budgets.csv"]


@pytest.mark.seconds
def test_the_statement_has_a_line_for_every_budget_and_the_model_the_table(capsys, budgets):
    code, out, err = run(capsys, *FIT, *budgets, "--out", "model", "--json")
    assert code == 0, err
    found = json.loads(out)
    guarantee = found["guarantee"]
    table = [(one["epsilon"], one["num_users"]) for one in found["settings"]["budgets"]]
    assert table == [(0.5, 1), (4.0, 21), (20.0, 3)]
    assert [one["num_users"] for one in guarantee["groups"]] == [1, 21, 3]
    assert guarantee["epsilon"] == guarantee["groups"][-1]["epsilon"]
    paid = {one["num_users"]: f"{one['epsilon']:.4f}" for one in guarantee["groups"]}
    for number, (asked, _) in zip(paid, table, strict=True):
        assert 0.99 * asked < float(paid[number]) <= asked
    privacy = Path("model", "PRIVACY.md").read_text()
    for text in (guarantee["statement"], privacy):
        for number, line in LINES.items():
            assert f"ε = {paid[number]} (rounded up), δ = 1e-05: {line}" in text
    code, out, err = run(capsys, "epsilon", "model", "model", "--delta", "1e-6")
    assert code == 0, err
    for number, line in LINES.items():
        assert f"δ = 1e-06: {line}" in out
        assert f"ε = {paid[number]} (rounded up), δ = 1e-06" not in out  # it costs more there
    # the model is the same file, whoever has which budget
    public = Path("model", "model.json").read_text()
    Path("budgets.csv").write_text(SOME.replace("u3,", "u7,"))
    assert run(capsys, *FIT, *budgets, "--out", "other")[0] == 0
    same = json.loads(public), json.loads(Path("other", "model.json").read_text())
    for one in same:
        for name in ("files", "sha256"):  # of a release with another key
            one.pop(name)
    assert same[0] == same[1]
    # the public part alone serves new users, whose own ratings cost nothing
    shutil.rmtree("model/private")
    Path("own.csv").write_text("item,rating\n1,5\n2,1\n")
    code, out, err = run(capsys, "recommend", "model", "--ratings", "own.csv", "--json")
    assert code == 0, err


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("u3,0.5\n", 3, "names no columns user and epsilon"),
        ("user,epsilon\nu99,1\n", 3, "user u99 is not in the catalogue"),
        ("user,epsilon\nu3,1\nu3,2\n", 3, "user u3 is there twice"),
        ("user,epsilon\nu3,0\n", 3, "must be a positive number"),
        ("user,epsilon\nu3,0.0001\n", 4, "the noise is too large"),
        ("user,epsilon\nu3,300\n", 2, "noise in whole numbers has a price for an epsilon below"),
    ],
)
def test_a_file_that_no_price_follows_from_is_refused(capsys, text, code, what):
    Path("budgets.csv").write_text(text)
    found, out, err = run(capsys, *FIT, "--user-budgets", "budgets.csv")
    assert (found, out) == (code, "")
    assert what in err
    assert "fix: " in err
    assert not Path("runs").exists()


def test_other_mechanisms_have_no_budgets_of_ones_own(capsys, budgets):
    code, _, err = run(capsys, *FIT, *budgets, "--mechanism", "ridge")
    assert code == 2
    assert "--user-budgets means nothing to --mechanism ridge; it goes with als, means" in err


@pytest.mark.seconds
def test_a_saved_model_does_not_say_who_has_which_budget(capsys, budgets):
    code, _, err = run(capsys, *FIT, *budgets, "--out", "model", "--seed", "0")
    assert code == 0, err
    code, _, err = run(capsys, "audit", "model", "--ratings", "mine.csv", *RANGE)
    assert code == 2
    assert "it is not known who has which" in err
    assert "--user-budgets in place of the model" in err


@pytest.mark.seconds
def test_an_interrupted_run_goes_on_with_the_same_budgets_alone(capsys, monkeypatch, budgets):
    words = [*CATALOGUE, "--mechanism", "means", *budgets, "--seed", "5", "--out", "parts"]
    assert "--resume parts" in interrupted(capsys, monkeypatch, *words)
    Path("budgets.csv").write_text(SOME.replace("u3,", "u7,"))  # the same table
    code, _, err = run(capsys, "fit", "--resume", "parts", "--devices", "1")
    assert code == 4
    assert "another mechanism" in err
    Path("budgets.csv").write_text(SOME)
    found = resumed(capsys, "parts")
    assert [one["num_users"] for one in found["guarantee"]["groups"]] == [1, 21, 3]
