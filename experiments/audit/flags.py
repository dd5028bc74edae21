"""The flags of `dpmf audit`."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from experiments.fit.flags import DEFAULT, MechanismFlag, RatingsFlags

# Flags whose value is no model to audit.
_OTHER_FOLDERS = ("--out", "--registry", "--data-dir", "--ratings", "--replay")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(RatingsFlags, MechanismFlag):
    """Try to break a claim: run every audit on a mechanism. Exit code 5 if one finds it false.

    --mechanism also takes FILE.py:NAME: a mechanism of your own in a file of Python, which is run.
    """

    FILES: ClassVar = True

    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA|MODEL")] = None
    """A data set that `dpmf data list` knows, a file of ratings, or the folder of a saved model. By
    default small generated ratings.
    """
    ratings: str | None = None
    """For a saved model: the ratings to audit it on."""
    all: bool = False
    """Audit every mechanism on DATA: the published claims at their papers' settings, and each sound
    variant. By default on ml-100k where it is found; with --quick on generated ratings.
    """
    quick: bool = False
    """Fewer runs, neighbours and steps, and no audits named one run, divergence and fit; with --all
    none named membership either. Less power, the same rate of false alarms.
    """
    out: Path | None = None
    """Folder for findings.json, report.md and report.html. They lie in its private/, since they are
    measured on the ratings and not priced; with --public in the folder itself.
    """
    public: bool = False
    """Leave out all that was measured on the ratings: what may be shown to others."""
    registry: Path | None = None
    """Folder for a record of every mechanism (JSON, and a page) that holds what may be shown, so
    that claims can be compared.
    """
    replay: str | None = None
    """A findings.json, or the folder that --out named: run again what was violated in it; with #n
    after it, the n-th finding.
    """
    only: tuple[str, ...] = ()
    """Families of audits to run, such as sensitivity; all by default."""
    neighbours: int | None = None
    """How many neighbouring data sets the sensitivity and privacy-loss audits try first: 64; with
    --all at most 16; with --quick 16 and 1.
    """
    runs: int | None = None
    """How many transcripts the privacy-loss audit draws: what a minute can do; with --all at most
    64; with --quick 128.
    """
    seed: int = 0
    """Of the audit's own randomness; the same seed gives the same findings."""
    layout: Literal["auto", "split", "dense"] = "auto"
    """How ratings are laid out on the device."""
    devices: int | None = None
    """Compare the noise of one device with that of so many, such as 2 cores of a CPU. All else runs
    on one device.
    """
    json: bool = False
    """Print one JSON object on stdout."""

    @classmethod
    def earlier(cls, words: Sequence[str]) -> Path | None:
        """See `MechanismFlag.earlier`: the saved model to audit."""
        named = (
            word
            for before, word in itertools.pairwise(["", *words])
            if before not in _OTHER_FOLDERS
        )
        return next((Path(word) for word in named if (Path(word) / "model.json").is_file()), None)


def command_line(command: Command) -> str:
    """The command line that gives this command."""
    words = ["dpmf", "audit"]
    for field in dataclasses.fields(command):
        value, flag = getattr(command, field.name), f"--{field.name.replace('_', '-')}"
        if value == (DEFAULT if field.name == "mechanism" else field.default):
            continue
        if field.name == "target":
            words.insert(2, str(value))
        elif isinstance(value, bool):
            words.append(flag)
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)
