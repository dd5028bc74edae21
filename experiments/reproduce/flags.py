"""The flags of `dpmf reproduce`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro

ROOT = Path("runs") / "reproduce"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Train figures of a paper again and compare them with its points; exit code 6 outside the
    tolerance.

    Seeded and not private: for the curator. Figures share their runs, and what an earlier call into
    the same folder trained is not trained again.
    """

    figures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FIGURE…")] = ()
    """Such as 001/fig1 003/fig7, or 001/all; --list names them. 001/claims, 002/claims, 003/claims
    and 004/claims are tables of a paper's statements, from the rows that are in --out; they train
    nothing.
    """
    list: bool = False
    """Print what can be reproduced, and how long it takes on this machine."""
    scale: Literal["small", "full"] | None = None
    """Paper 001. small: ranks up to 60, and 96 and 128 with one seed. full: all ranks, three seeds;
    default on an accelerator. Paper 002. small, the default: fewer epochs, one seed. full: the
    paper's 100 epochs, three seeds.
    """
    beside: Literal["auto", "all", "none"] = "auto"
    """Paper 001. Sound variants at equal exact ε, trained on 80% of the ratings and measured on the
    rest. auto: at the small scale with one seed and ranks up to 20, at the full scale like
    everything else. all: like everything else.
    """
    ranks: tuple[int, ...] | None = None
    """Of figures over the rank, only these, at any scale."""
    series: tuple[str, ...] | None = None
    """Only these curves, such as 0.15 0.5 non-private; all by default."""
    seeds: tuple[int, ...] | None = None
    """One training a seed and setting; the mean is compared. By default 0 1 2, see --scale."""
    data_dir: Path | None = None
    """Where the data sets are; else the environment's DPMF_DATA."""
    out: Path = ROOT
    """Folder of the results, one folder a figure, and of the runs; what is there is not trained
    again.
    """
    docs: Path | None = None
    """With claims: write the results page in this folder too, such as docs/results."""
    devices: int | None = None
    """Number of devices; all by default (a CPU counts one per core)."""
    json: bool = False
    """Print one JSON object on stdout."""


HERE = {"data_dir": None, "out": ROOT, "docs": None, "devices": None, "json": False}
"""Flags that say where and how on this machine, at their defaults."""


def command_line(command: Command) -> str:
    """The command line that does, or resumes, this."""
    words = ["dpmf", "reproduce", *command.figures]
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if field.name == "figures" or value == field.default:
            continue
        words.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
    return shlex.join(words)


def repeat_of(command: Command, name: str) -> str:
    """The command line that makes one of a call's figures again, on any machine."""
    return command_line(dataclasses.replace(command, figures=(name,), **HERE))
