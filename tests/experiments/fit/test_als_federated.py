"""`dpmf fit --mechanism als-federated`: what is stated, released, sent and refused; new users."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.cases.fit import CATALOGUE, RANGE, fit, interrupted, refused, run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")

FEDERATED = ["--mechanism", "als-federated"]
MEANS = [*FEDERATED, "--rank", "0"]


@pytest.mark.seconds
def test_a_release_of_factors_serves_new_users_and_says_whom_it_holds_against(capsys):
    words = [*FEDERATED, "--rank", "2", "--steps", "1", "--honest-shares", "9", *CATALOGUE]
    found = fit(capsys, *words)
    guarantee, settings = found["guarantee"], found["settings"]
    assert 3.999 <= guarantee["epsilon"] <= 4.0
    assert (guarantee["unit"], guarantee["status"]) == ("user", "proved")
    assert not guarantee["seeded"]
    assert (settings["honest_shares"], settings["num_users"]) == (9, 25)  # of the catalogue
    assert "at least 9 users other than the protected one" in guarantee["statement"]
    assert sorted(load_file(Path(found["out"]) / "release.safetensors")) == [
        *("center", "factor_unit", "factor_variance", "item_factors"),
    ]
    assert any("plays all parts" in note for note in found["notes"])
    Path("new.csv").write_text("item,rating\n3,5\n5,1\n")
    code, out, err = run(capsys, "recommend", found["out"], "--ratings", "new.csv", "--json")
    assert code == 0, err
    assert len(json.loads(out)["recommended"]) == 7  # of nine items two are rated
    code, out, err = run(capsys, "epsilon", "model", found["out"], "--json")
    assert code == 0, err
    assert json.loads(out)["epsilon"] == guarantee["epsilon"]


@pytest.mark.seconds
def test_a_fit_says_the_bytes_of_every_kind_of_pass(capsys):
    words = [*MEANS, "--seed", "0", "--controls", "none", "--devices", "1"]
    code, out, err = run(capsys, "fit", "mine.csv", *RANGE, *words, "--out", "model")
    assert code == 0, err
    told = " ".join(out.split())
    assert "bytes in a pass for counts, of a user who lists 7 items:" in told
    assert "bytes in a pass for means (of 4), of a user who lists 7 items:" in told
    assert "user to third party 28" in told
    assert "user to third party 32" in told  # and the mean scale
    assert "means alone" in told
    assert "trusted curator" not in told


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--honest-shares", "20", "--seed", "0"), 4, "19 of 20 users"),
        (("--honest-shares", "0", "--seed", "0"), 2, "honest_shares"),
        ((), 4, "--catalogue-users FILE"),
    ],
)
def test_what_no_guarantee_can_be_given_for_is_refused(capsys, words, code, said):
    found, err = refused(capsys, *MEANS, *words)
    assert (found, said in err) == (code, True), err
    assert "fix:" in err


@pytest.mark.seconds
def test_an_interrupted_release_is_not_answered_a_second_time(capsys, monkeypatch):
    """Its earlier phases would be, and the noisy sums of these were seen."""
    interrupted(capsys, monkeypatch, *MEANS, *CATALOGUE, "--out", "stopped", after=1)
    code, out, err = run(capsys, "fit", "--resume", "stopped", "--devices", "1")
    assert (code, out) == (4, "")
    assert "an earlier phase were seen" in err
