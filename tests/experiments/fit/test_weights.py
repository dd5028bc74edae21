"""`dpmf fit --weight-column`: who may have weights, that they count, and that the price stays."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cases.fit import CATALOGUE, PAIRS, RANGE, VALUES, run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

FIT = ["fit", "weighted.csv", *RANGE, *CATALOGUE, "--controls", "none", "--devices", "1"]
FIT += ["--seed", "0", "--json"]
MEANS = ["--mechanism", "means", "--epsilon", "20"]
WEIGHTS = ["--weight-column", "trust"]


@pytest.fixture(autouse=True)
def weighted(elsewhere):
    trust = np.random.default_rng(1).integers(0, 9, len(PAIRS)) / 8
    rows = zip(PAIRS // 7, PAIRS % 7, VALUES, trust, strict=True)
    lines = [f"u{user},{item},{value},{weight}" for user, item, value, weight in rows]
    Path("weighted.csv").write_text("\n".join(["user,item,rating,trust", *lines]) + "\n")
    return lines


def fitted(capsys, *words):
    code, out, err = run(capsys, *FIT, *words)
    assert code == 0, err
    return json.loads(out)


@pytest.mark.seconds
def test_weights_count_and_cost_nothing(capsys, weighted):
    alike = fitted(capsys, *MEANS, "--out", "alike")
    found = fitted(capsys, *MEANS, *WEIGHTS, "--out", "found")
    assert found["guarantee"] == alike["guarantee"]
    assert found["rmse_train"] != alike["rmse_train"]
    # no file outside private/ says which ratings have which weight, or that there are any
    assert (
        json.loads(Path("found", "model.json").read_text())["settings"]
        == (json.loads(Path("alike", "model.json").read_text())["settings"])
    )
    # what counts nothing might be anything
    silent = [line for line in weighted if line.endswith(",0.0")]
    assert silent
    text = Path("weighted.csv").read_text()
    for line in silent:
        user, item, value, weight = line.split(",")
        text = text.replace(line, f"{user},{item},{6 - int(value)},{weight}")
    Path("weighted.csv").write_text(text)
    fitted(capsys, *MEANS, *WEIGHTS, "--out", "other")
    released = "release.safetensors"
    assert Path("other", released).read_bytes() == Path("found", released).read_bytes()
    assert Path("alike", released).read_bytes() != Path("found", released).read_bytes()
    # a user's own weights serve her with the release alone
    shutil.rmtree("found/private")
    lists = []
    for weight in (1, 0.25):
        Path("me.csv").write_text(f"item,rating,trust\n1,5,{weight}\n2,1,1\n")
        words = ["recommend", "found", "--ratings", "me.csv", "--json"]
        code, out, err = run(capsys, *words, *WEIGHTS)
        assert code == 0, err
        lists.append(json.loads(out)["recommended"])
    assert lists[0] != lists[1]


@pytest.mark.seconds
@pytest.mark.parametrize("saved", [False, True])
def test_weights_go_into_an_audit(capsys, saved):
    words = ["audit", "weighted.csv", "--mechanism", "means", "--epsilon", "20"]
    if saved:
        fitted(capsys, *MEANS, *WEIGHTS, "--out", "model")
        words = ["audit", "model", "--ratings", "weighted.csv"]
    words += [*RANGE, "--neighbours", "4", "--only", "sensitivity", "--json"]
    found = []
    for weights in ([], WEIGHTS):
        code, out, err = run(capsys, *words, *weights, "--seed", "0")
        assert code == 0, err
        rows = [row for row in json.loads(out)["findings"] if row["measured"] is not None]
        assert {row["verdict"] for row in rows} == {"consistent"}
        found.append([row["measured"] for row in rows])
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--mechanism", "ridge", *WEIGHTS], "--weight-column means nothing to --mechanism ridge"),
        (["--mechanism", "als-federated", *WEIGHTS], "--weight-column means nothing"),
        ([*MEANS, "--weight-column", "confidence"], "there is no weight column confidence"),
        ([*MEANS, "--weight-column", "rating"], "columns 1, 2, 3, 3 are asked of a file with 4"),
    ],
)
def test_weights_that_cannot_be_are_refused(capsys, words, says):
    code, _, err = run(capsys, *FIT, *words)
    assert code in (2, 3)
    assert says in err
    assert "fix:" in err


def test_recommend_refuses_weights_without_ratings_of_new_users(capsys):
    code, _, err = run(capsys, "recommend", "nowhere", "--user", "u1", *WEIGHTS)
    assert code == 2
    assert "--weight-column says how --ratings is read" in err
