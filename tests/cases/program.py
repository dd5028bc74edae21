"""A program of the tests in the table of commands, in process and as a process."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
"""A program of the tests."""

import time
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from dpmf_jax import errors
from experiments.cli import console


@dataclass(frozen=True, kw_only=True)
class Command:
    """Print what was asked for, or end as told."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """A data set."""
    center: float | Literal["item", "global"] = "item"
    """What is subtracted."""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest rating."""
    steps: int = 10
    """How many."""
    end: str = ""
    """How to end."""
    json: bool = False
    """One JSON object on stdout."""


def run(command):
    match command.end:
        case "":
            result = {**vars(command), "epsilon": float("inf")}
            console.emit(result, json=command.json, render=lambda result: "plain text")
        case "FloatingPointError":
            raise FloatingPointError("diverged at step 130; lower learning_rate")
        case "OSError":
            open("/nowhere/at/all")
        case "interrupt":
            raise console.Interrupted("dpmf fit --resume runs/a")
        case "sleep":
            console.say("ready")
            time.sleep(30)
        case "chatter":
            for line in range(100_000):
                print(line)
        case "progress":
            with console.progress("fit", 3, every=float(command.data)) as report:
                for done in range(1, 4):
                    report(done, rmse=0.9, steps=done)
        case "code":
            return 5
        case "import":
            import tests.nowhere
        case "extra":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        case name if hasattr(errors, name):
            raise getattr(errors, name)("what happened", where="ratings.csv, row 3",
                fix="mend row 3")
        case name:
            raise RuntimeError(f"two lines\\nof {name}")
'''

START = (
    "import sys; from experiments.cli import main as cli; cli.COMMANDS['try'] = ('a test',"
    " 'a_test_program:Command'); "
)
START += "cli.entry()"


def start(
    folder: Path, *words: str, encoding: str = "utf-8", stdout: int = subprocess.PIPE
) -> subprocess.Popen:
    """The same in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONIOENCODING": encoding,
        "PYTHONUNBUFFERED": "",
    }
    line = [sys.executable, "-c", START, *words]
    return subprocess.Popen(line, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)
