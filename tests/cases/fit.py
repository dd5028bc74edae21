"""A folder with a small file of ratings, and `dpmf fit` run in it: what the tests of the command
share.
"""

import json
from pathlib import Path

import numpy as np

from dpmf_jax.training import fit as fitting
from experiments.cli import main as cli

RANDOM = np.random.default_rng(0)
PAIRS = RANDOM.choice(20 * 7, size=90, replace=False)  # user · 7 + item
VALUES = RANDOM.integers(1, 6, len(PAIRS))
RANGE = ["--rating-range", "1", "5"]
# Of joint noise, where a test names no other mechanism: it has most flags.
JOINT = ["--mechanism", "gaussian-joint-noise"]
FIT = ["fit", "mine.csv", *RANGE, *JOINT, "--controls", "simple", "--devices", "1"]
AUDIT = ["--ratings", "mine.csv", *RANGE]
CATALOGUE = ["--catalogue-users", "users.txt", "--catalogue-items", "items.txt"]


def write_ratings(path, rows):
    """A csv of (user, item, rating) rows with a header."""
    lines = ["user,item,rating", *(",".join(map(str, row)) for row in rows)]
    Path(path).write_text("\n".join(lines) + "\n")


def enter(folder, monkeypatch):
    """Goes to an empty folder, and writes ratings of 20 users and 7 items there, a longer catalogue
    of both, and one that is too short. Nothing of this machine's data and ledger is seen.
    """
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DPMF_DATA", raising=False)
    monkeypatch.setenv("DPMF_LEDGER", str(folder / "ledger.json"))
    rows = zip(PAIRS // 7, PAIRS % 7, VALUES, strict=True)
    write_ratings("mine.csv", ((f"u{user}", item, value) for user, item, value in rows))
    Path("few.txt").write_text("u1\nu2\n")
    Path("users.txt").write_text("\n".join(f"u{user}" for user in range(25)) + "\n")
    Path("items.txt").write_text("\n".join(map(str, range(9))) + "\n")


def run(capsys, *words):
    """(exit code, stdout, stderr) of a command."""
    code = cli.main([str(word) for word in words])
    told = capsys.readouterr()
    return code, told.out, told.err


def fit(capsys, *words):
    """The JSON of a fit of the file that must succeed, or end in a model that says of itself that
    it diverged.
    """
    return _model(*run(capsys, *FIT, "--json", *words))


def _model(code, out, err):
    assert out, err
    found = json.loads(out)
    assert code == (fitting.Diverged.exit_code if found["diverged"] else 0), err
    return found


def refused(capsys, *words):
    """(exit code, what was said) of a fit that is refused, after which nothing new is in the
    folder.
    """
    before = sorted(Path().rglob("*"))
    code, out, err = run(capsys, *FIT, *words)
    assert sorted(Path().rglob("*")) == before
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("error: ")
    return code, err


def interrupted(capsys, monkeypatch, *words, after=2):
    """Ctrl-C in a fit after so many chunks of steps; what was said."""
    train, chunks = fitting.train, iter(range(after))

    def until(*args, **kwargs):
        if next(chunks, None) is None:
            raise KeyboardInterrupt
        return train(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "train", until)
        code, out, err = run(capsys, *FIT, *words)
    assert (code, out) == (130, "")
    return err


def audited(capsys, folder, *words, code=0):
    """The JSON of an audit of a saved model on the file's ratings."""
    ended, out, err = run(capsys, "audit", folder, *AUDIT, "--json", *words)
    assert ended == code, err
    return json.loads(out)


def verdicts(audit, family):
    """Of the findings of a family of audits."""
    return {one["verdict"] for one in audit["findings"] if one["audit"].startswith(family)}


def resumed(capsys, folder):
    """The JSON of the interrupted run in a folder, gone on with."""
    return _model(*run(capsys, "fit", "--resume", folder, "--json", "--devices", "1"))
