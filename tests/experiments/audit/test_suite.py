"""`dpmf audit --all`: every mechanism of the table, in its order, at settings that are priced."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import audits
from experiments.audit import command, flags
from experiments.audit import suite as audit_suite
from experiments.audit import trial as audit_trial
from tests.cases.fit import run

pytestmark = pytest.mark.usefixtures("elsewhere", "quick_compilation")


@pytest.fixture
def two(monkeypatch):
    """Of all mechanisms the first published claim that fails, and one without a claim."""
    kept = [
        entry
        for entry in audit_suite.ENTRIES
        if "C = 0.25" in entry.label or entry.mechanism == "sketch"
    ]
    monkeypatch.setattr(audit_suite, "ENTRIES", tuple(kept[:2]))


# The processes of `--all` compile as a command does, and so must the replay: `optimized`.
@pytest.mark.seconds
@pytest.mark.usefixtures("optimized")
def test_all_is_one_table_in_the_order_of_the_list(two, capsys):
    words = ["audit", "--all", "--quick", "--only", "sensitivity", "--neighbours", "40"]
    code, out, err = run(capsys, *words, "--json")
    assert code == 5, err
    told = json.loads(out)
    keys = {"mechanism", "audit", "claim", "measured", "lower", "upper", "confidence", "verdict"}
    assert all(keys <= set(one) for one in told["findings"])
    assert [(one["label"][:3], one["verdict"]) for one in told["trials"]] == [
        ("001", "violated"),
        ("002", "not applicable"),
    ]
    assert [one["trial"] for one in told["findings"]] == [0, 0, 1, 1]
    assert told["trials"][0]["data"].startswith("synthetic-40x30x600")
    assert told["quick"] is True
    assert told["sizes"]["cut_by_quick"] == {"sensitivity": audits.QUICK["sensitivity"]}
    assert "error: the claim of 001 as published, C = 0.25 does not hold: 2 of 4 findings" in err
    Path("all.json").write_text(out)
    ended, again, _ = run(capsys, "audit", "--replay", "all.json#1", "--json")
    assert ended == 5
    assert json.loads(again)["replayed"][0]["same_bits"]
    code, out, _ = run(capsys, *words)
    assert "no claim of privacy is made" in " ".join(out.split())


@pytest.mark.seconds
def test_trials_keep_their_places_whichever_ends_first(capsys, monkeypatch):
    monkeypatch.setattr(audit_suite, "ENTRIES", audit_suite.ENTRIES[:6])
    code, out, err = run(capsys, "audit", "--all", "--quick", "--only", "enumeration", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [one["label"] for one in told["trials"]] == [
        entry.label for entry in audit_suite.ENTRIES
    ]
    for trial in told["trials"]:
        first, last = trial["findings"]
        assert {told["findings"][number - 1]["mechanism"] for number in (first, last)} <= set(
            trial["phases"]
        )


@pytest.mark.seconds
def test_every_mechanism_of_the_list_can_be_made_and_says_what_is_promised():
    ratings = audit_suite.generated()
    made = {label: make() for label, make in audit_suite.makers(ratings, {}, small=True).items()}
    status = {
        label: trial.phases[-1][0].guarantee(trial.phases[-1][1]).status
        for label, trial in made.items()
    }
    published = {label for label in status if "as published" in label}
    assert {status[label] for label in published} == {"claimed", "none"}
    assert {status[label] for label in set(status) - published} == {"proved"}
    assert {label.split()[0] for label in status} == {"001", "002", "003", "004", "ours:"}
    assert {
        trial.settings["tau"] for label, trial in made.items() if "τ of the plots" in label
    } == {5}


@pytest.mark.seconds
def test_what_is_held_to_fewer_steps_says_so_and_is_priced_for_as_many():
    trial = audit_suite.makers(audit_suite.generated(), {}, small=False)[
        "001 as published, τ of the plots"
    ]()
    assert trial.phases[-1][1] == 300
    told = (
        "privacy loss over the first 3 steps; membership over the first 50 steps; one run,"
        " divergence over the first 100 steps"
    )
    assert trial.why.endswith(told)
    short = trial._replace(short={"privacy loss": 2, "density": 1000})
    sizes = audit_trial.Sizes(neighbours=2, runs=8, quick=True)
    found = audit_trial.findings(short, "privacy loss", seed=0, sizes=sizes)
    assert {one["claim"].rpartition(",")[2] for one in found} == {" the price of 2 steps"}
    assert audit_suite.makers(audit_suite.generated(), {}, small=True)[trial.label]().short == {}


@pytest.mark.seconds
def test_an_error_in_one_trial_ends_all_of_them_and_reaches_the_command(two, capsys, monkeypatch):
    """The processes know nothing of a trial that only this one has."""
    entry = audit_suite.ENTRIES[0]
    unknown = entry._replace(trial=entry.trial._replace(label="nobody has this"))
    monkeypatch.setattr(audit_suite, "ENTRIES", (*audit_suite.ENTRIES, unknown))
    code, out, err = run(capsys, "audit", "--all", "--quick", "--only", "enumeration")
    assert (code, out) == (1, "")
    assert "KeyError" in err
    assert "nobody has this" in err
    assert not multiprocessing.active_children()


@pytest.mark.seconds
def test_float_noise_is_told_by_its_values_in_a_process_of_all(two, capsys):
    """A table of floats holds what was drawn only where both programs round alike."""
    code, out, err = run(capsys, "audit", "--all", "--quick", "--only", "lookup", "--json")
    assert code == 5, err
    assert [one["verdict"] for one in json.loads(out)["findings"]] == ["violated", "not applicable"]


def ended_within(seconds, ask):
    """Whether asking after processes finds none of them in that time."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        try:
            ask()
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_ctrl_c_ends_the_processes_too_and_says_how_to_go_on(tmp_path):
    words = [sys.executable, "-m", "experiments.cli", "audit", "--all", "--quick"]
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        assert started.stderr is not None
        first = started.stderr.readline()  # a process has begun
        os.killpg(started.pid, signal.SIGINT)
        _, rest = started.communicate(timeout=60)
    assert first.startswith("audit: ")
    assert "Traceback" not in rest
    assert "dpmf audit --all --quick" in rest
    assert started.returncode == 130
    assert ended_within(10, lambda: os.killpg(started.pid, 0)), "a process of the group is left"


@pytest.mark.slow
def test_processes_end_where_the_first_one_is_killed(tmp_path):
    words = [sys.executable, "-m", "experiments.cli", "audit", "--all", "--quick"]
    with subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        assert started.stderr is not None
        started.stderr.readline()  # a process has begun
        started.kill()
        started.wait(timeout=60)
        assert ended_within(20, lambda: os.killpg(started.pid, 0)), "a process is left"


def test_quick_leaves_membership_to_one_mechanism_or_to_who_asks_for_it():
    def families(**given: Any):
        return command._checked(flags.Command(quick=True, **given), audits)[0]

    assert "membership" not in families(all=True)
    assert {*families(all=True), "membership"} == {*families()}
    assert families(all=True, only=("membership",)) == ["membership"]
