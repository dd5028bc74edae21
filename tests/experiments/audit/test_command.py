"""`dpmf audit` as a program: its report, its replay, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.audit import replay as audit_replay
from experiments.audit import selftest as audit_selftest
from experiments.audit import trial as audit_trial
from experiments.audit.flags import Command
from experiments.fit import mechanisms as fit_mechanisms
from experiments.fit.flags import with_flags_of
from tests.cases.fit import run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")


# Paper 001 where its sensitivity does not hold, on generated ratings.
RATINGS = "synthetic-40x30x600"
PUBLISHED = [
    *(
        "--mechanism",
        "gaussian",
        "--rank",
        "5",
        "--clip-norm",
        "0.25",
        "--learning-rate",
        "0.012",
        "--center",
        "3",
    ),
    *("--epsilon-step", "0.2071", "--steps", "60"),
]
FEW = ["--only", "sensitivity", "--neighbours", "40"]
ONE = ["audit", RATINGS, *PUBLISHED, *FEW]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(folder of the report of a claim that is false, what was printed, exit code); without the
    self-test's seconds.
    """
    out = tmp_path_factory.mktemp("audit") / "report"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audit_selftest, "run", lambda *args: [])
        code = audit_code([*ONE, "--out", str(out)])
    return out, code


def audit_code(words):
    from experiments.cli import main as cli

    return cli.main(words)


@pytest.mark.seconds
def test_a_false_claim_ends_with_5_and_the_whole_report(report):
    out, code = report
    assert code == 5
    told = json.loads((out / "private" / "findings.json").read_text())
    assert [one["verdict"] for one in told["findings"]] == ["violated", "violated"]
    assert told["trials"][0]["evidence"].startswith("sensitivity: largest step: 1.")
    assert (
        told["trials"][0]["utility"]["rmse"]
        < told["trials"][0]["utility"]["controls"]["global_mean"]["rmse_train"]
    )
    assert told["sizes"]["neighbours"] == 40
    page = (out / "private" / "report.html").read_text()
    assert '<div class="verdict violated">' in page
    assert f"dpmf audit --replay {out}/findings.json#1" in page
    records = json.loads((out / "private" / "records.json").read_text())
    assert set(records["findings"]["1"]["replay"]["pair"]) >= {"user", "item", "value", "change"}


def replayed(capsys, named, code):
    ended, out, err = run(capsys, "audit", "--replay", named, "--json")
    assert ended == code, err
    return json.loads(out)["replayed"], err


@pytest.mark.seconds
@pytest.mark.parametrize("leaks", [False, True])
def test_the_program_of_the_command_is_made_anew_for_each_data_set(leaks, capsys, monkeypatch):
    """So what its settings would take from the ratings is seen; nothing is, unless it is
    planted.
    """
    made = fit_mechanisms.phases_and_settings

    def counted(mechanism, flags, train, public=None):
        phases, settings = made(mechanism, flags, train, public)
        return phases, settings | {"ratings": train.num_ratings}

    if leaks:
        monkeypatch.setattr(fit_mechanisms, "phases_and_settings", counted)
    words = ["--mechanism", "gaussian-public-items", "--steps", "3", "--rank", "2", "--center", "3"]
    words += ["--relation", "rating-presence", "--residual-clip", "1", "--only", "fit", "--json"]
    code, out, _ = run(capsys, "audit", "synthetic-20x10x90", *words)
    verdicts = {one["audit"]: one["verdict"] for one in json.loads(out)["findings"]}
    assert {name for name, verdict in verdicts.items() if verdict != "consistent"} == (
        {"fit: public words"} if leaks else set()
    )
    assert len(verdicts) == 5
    assert code == (5 if leaks else 0)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("mechanism", "verdict"), [("gaussian-joint-noise", "consistent"), ("sketch", "not applicable")]
)
def test_noise_is_compared_on_as_many_devices_as_are_asked_for(mechanism, verdict):
    """In a process of its own: jax has started with one device here. The published sketch refuses
    more than one.
    """
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    words = [
        "-m",
        "experiments.cli",
        "audit",
        "--mechanism",
        mechanism,
        *(("--center", "3") if mechanism == "gaussian-joint-noise" else ()),  # one phase
        "--only",
        "faults",
        "--devices",
        "2",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, *words],
        env=env | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    phases = [
        one for one in json.loads(done.stdout)["findings"] if one["audit"] == "noise: devices"
    ]
    (found,) = phases
    assert found["verdict"] == verdict
    assert found["details"].get("devices", 2) == 2
    assert verdict == "consistent" or "one device alone" in found["details"]["why"]


@pytest.mark.seconds
def test_a_violation_is_seen_again_to_the_last_bit(report, capsys):
    rows, err = replayed(capsys, report[0] / "findings.json", 5)
    assert [row["number"] for row in rows] == [1, 2]
    assert all(row["seen_again"] and row["same_bits"] for row in rows)
    assert all(row["measured_now"] == row["measured"] > 1 for row in rows)
    assert "seen again: 2 of 2 findings are violated" in err


def test_one_finding_is_replayed_by_its_number_and_prints_a_table(report, capsys):
    code, out, _ = run(capsys, "audit", "--replay", f"{report[0]}#2")
    assert code == 5
    assert "gaussian: sensitivity: root mean square over steps" in " ".join(out.split())
    assert "1 findings run again" in out


def changed(report, tmp_path, change):
    told = json.loads((report[0] / "private" / "findings.json").read_text())
    change(told)
    path = tmp_path / "findings.json"
    path.write_text(json.dumps(told))
    return path


def test_a_finding_that_is_not_seen_again_ends_with_6(report, capsys, tmp_path):
    def other_verdict(told):
        told["findings"][0] |= {"verdict": "consistent", "measured": 0.5}

    rows, err = replayed(capsys, f"{changed(report, tmp_path, other_verdict)}#1", 6)
    assert (rows[0]["seen_again"], rows[0]["same_bits"], rows[0]["verdict_now"]) == (
        False,
        False,
        "violated",
    )
    assert "1 of 1 findings are not seen again" in err


def test_other_ratings_are_no_replay(report, capsys, tmp_path):
    path = changed(report, tmp_path, lambda told: told["trials"][0].update(data_sha256="0" * 64))
    code, _, err = run(capsys, "audit", "--replay", path)
    assert code == 3
    assert "not the ratings that were audited" in err


@pytest.mark.parametrize(
    ("change", "number", "code", "what"),
    [
        (lambda told: told.update(public=True), "", 2, "a public report"),
        (lambda told: told.update(schema=99), "", 3, "of an unknown kind, 99"),
        (lambda told: told.pop("seed"), "", 3, "not the findings of an audit"),
        (lambda told: told["sizes"].pop("runs"), "", 3, "not the findings of an audit"),
        (lambda told: told["trials"][0]["source"].clear(), "", 3, "do not say what was audited"),
        (
            lambda told: told["trials"][0]["source"]["command"].update(rank="many"),
            "",
            3,
            "do not say what was audited",
        ),
        (lambda told: told["trials"][0].update(label="gone"), "", 3, "nothing is called 'gone'"),
        (
            lambda told: [one.update(verdict="consistent") for one in told["findings"]],
            "",
            2,
            "no finding is violated",
        ),
        (lambda told: None, "#3", 2, "they count from 1 to 2"),
        (lambda told: None, "#0", 2, "they count from 1 to 2"),
        (lambda told: None, "#x", 2, "no finding 'x'"),
    ],
)
def test_what_cannot_be_replayed_says_so(report, capsys, tmp_path, change, number, code, what):
    ended, out, err = run(
        capsys, "audit", "--replay", f"{changed(report, tmp_path, change)}{number}"
    )
    assert (ended, out) == (code, "")
    assert what in err
    assert "fix:" in err


def test_a_file_that_is_not_there_or_no_json_is_no_replay(capsys, tmp_path):
    for text in (None, "{", "[]"):
        if text is not None:
            Path("some.json").write_text(text)
        code, _, err = run(capsys, "audit", "--replay", "some.json#1")
        assert code == 3
        assert "fix: give the findings.json" in err


def test_a_command_is_kept_and_restored_whole():
    command = with_flags_of(Command, "gaussian-public-items")(
        target="mine.csv",
        rating_range=(1.0, 5.0),
        items=Path("items.csv"),
        only=("noise",),
        quick=True,
        rank=3,
    )
    kept = audit_replay.kept_fields(command)
    assert audit_replay.restored(Command, {"command": json.loads(json.dumps(kept))}) == command
    assert set(kept) == {"mechanism", "target", "rating_range", "items", "only", "quick", "rank"}
    kept = audit_replay.kept_fields(Command(out=Path("a"), json=True, public=True))
    assert set(kept) == {"mechanism"}  # a later version may have another default


# ---- public


@pytest.mark.seconds
def test_public_holds_no_number_that_was_measured(capsys, monkeypatch):
    monkeypatch.setattr(audit_selftest, "run", lambda *args: [])
    code, out, _ = run(capsys, *ONE, "--public", "--out", "open", "--json")
    assert code == 5
    told = json.loads(out)
    assert told["public"] is True
    assert [set(one) & {"measured", "lower", "upper"} for one in told["findings"]] == [set(), set()]
    assert {path.name for path in Path("open").iterdir()} == {
        "findings.json",
        "report.md",
        "report.html",
    }
    assert json.loads(Path("open/findings.json").read_text())["violated"] == 2
    code, out, _ = run(capsys, *ONE, "--public")
    assert code == 5
    assert "nothing in it was measured on the ratings" in out
    assert "1.3" not in out


# ---- how it ends


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--only", "luck"], 2, "there are no audits named 'luck'"),
        (["--runs", "0"], 2, "--runs must be at least 1"),
        (["--delta", "1"], 2, "--delta must be at least 0 and below 1"),
        (["--all", "--rank", "3"], 2, "--rank would be another claim"),
        (["--all", "--ratings", "synthetic"], 2, "not a saved model"),
        (["--all", "--data-dir", "nowhere"], 3, "ml-100k is not there"),
        (["--replay", "x.json", "--rank", "3"], 3, "cannot be read"),
        (["--out", "mine.csv"], 2, "a file, not a folder"),
        (["--out", "mine.csv/below"], 2, "a file, not a folder"),
        (["missing.csv", "--rating-range", "1", "5"], 3, "missing.csv"),
    ],
)
def test_what_is_refused_says_what_where_and_how_to_mend_it(capsys, words, code, what):
    before = sorted(Path().rglob("*"))
    ended, out, err = run(capsys, "audit", *words)
    assert (ended, out) == (code, "")
    assert what in err
    assert "fix:" in err
    assert "Traceback" not in err
    assert sorted(Path().rglob("*")) == before


def test_a_flag_beside_replay_is_refused(report, capsys):
    for words, flag in (
        (["--rank", "3"], "--rank"),
        (["mine.csv"], "DATA"),
        (["--seed", "1"], "--seed"),
    ):
        code, _, err = run(capsys, "audit", *words, "--replay", report[0])
        assert code == 2
        assert f"{flag} would be another audit" in err


def test_an_interrupted_audit_leaves_nothing_and_says_how_to_run_it_again(capsys, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    before = sorted(Path().rglob("*"))
    monkeypatch.setattr(audit_trial, "findings", interrupted)
    words = [
        "mine.csv",
        "--rating-range",
        "1",
        "5",
        "--quick",
        "--only",
        "noise",
        "density",
        "--out",
        "a folder",
    ]
    code, out, err = run(capsys, "audit", *words)
    assert (code, out) == (130, "")
    assert (
        err.splitlines()[-1]
        == "fix: resume with: dpmf audit mine.csv --rating-range 1.0 5.0 --quick --out 'a folder'"
        " --only noise density"
    )
    assert sorted(Path().rglob("*")) == before


@pytest.mark.seconds
def test_settings_come_from_a_file_and_a_wrong_name_is_refused(capsys):
    Path("audit.toml").write_text(
        'target = "mine.csv"\nrating-range = [1, 5]\nonly = ["enumeration"]\nquick = true\n'
    )
    code, out, _ = run(capsys, "audit", "--config", "audit.toml", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["data"], told["sizes"]["audits"], told["quick"]) == ("mine", "enumeration", True)
    Path("audit.toml").write_text("neighbors = 3\n")
    code, _, err = run(capsys, "audit", "--config", "audit.toml")
    assert code == 2
    assert "did you mean `neighbours`?" in err
