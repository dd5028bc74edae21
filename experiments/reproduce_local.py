"""`dpmf reproduce` for paper 004: every figure on the data sets that are there, and the table of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import DataError, UsageError
from experiments import console, devices
from experiments.reproduce.local_table import CLAIMS, FIGURES, SEEDS, Figure, expand

if TYPE_CHECKING:
    from experiments.reproduce_command import Command

PREFIX = "004/"
UNUSED = ("scale", "beside", "ranks", "series")  # flags of paper 001's figures


def check(command: Command) -> list[Figure]:
    """The figures of this paper that are asked for.

    Raises: UsageError for one that is not known, and for flags that mean nothing to them where nothing else is asked.
    """
    names = [name for name in command.figures if name.startswith(PREFIX)]
    if names and len(names) == len(command.figures):
        for name in UNUSED:
            if getattr(command, name) not in (None, "auto"):
                raise UsageError(f"--{name} goes with paper 001's figures", fix=f"leave out --{name}")
    return expand([name for name in names if name != CLAIMS])


def reproduce(chosen: Sequence[Figure], command: Command, here: set[str], repeat: str) -> list[dict[str, Any]]:
    """Trains what is not stored, compares, writes; one result for each figure on each data set that is there.

    repeat: the command that does it again, with {figure} in it.

    Raises: DataError where none of a figure's data sets is there.
    """
    from dpmf_jax import datasets, storage
    from experiments.reproduce import local_figures, local_report, local_runs, provenance

    num_devices = devices.use(command.devices)
    done = []
    benches: dict[str, Any] = {}
    for figure in chosen:
        there: list[str | None] = [name for name in figure.data if name in here] if figure.data else [None]
        if not there:
            names = " or ".join(figure.data)
            raise DataError(
                f"{figure.name} needs {names}", where="none is there", fix="dpmf data list says how to get them"
            )
        for name in there:
            store = command.out / (name or "generated")
            with storage.lock(storage.private_folder(store)):
                bench = None
                if name is not None:
                    if name not in benches:
                        ratings = datasets.load(name, data_dir=command.data_dir, split=None)
                        benches[name] = local_runs.Data(ratings, num_devices=num_devices)
                    seeds = SEEDS if command.seeds is None else command.seeds
                    bench = local_figures.Bench(benches[name], store, seeds, console.say)
                outcome = local_figures.run(figure, bench, store, console.say)
            told = local_report.summary(
                figure,
                outcome,
                None if bench is None else bench.data.ratings,
                command=repeat.format(figure=figure.name),
                commit=provenance.commit(),
                device=provenance.device(),
            )
            files = local_report.write(figure, told, command.out / figure.stem)
            done.append(told | {"out": str(command.out / figure.stem), "files": [str(file) for file in files]})
    return done


def claimed(command: Command, repeat: str) -> dict[str, Any]:
    """The table of claims, from the rows that are stored; writes it, and the results page where --docs asks for it."""
    from experiments.reproduce import local_claims, local_page, provenance

    devices.use(command.devices)
    stored = local_claims.stored(command.out)
    console.say(f"{CLAIMS}: rows of {len(stored)} figures in {command.out}; enumerating the randomiser")
    judged = local_claims.judge(stored)
    told = console.plain(
        local_page.summary(judged, stored, command=repeat, commit=provenance.commit(), device=provenance.device())
    )
    files = local_page.write(told, command.out / local_page.STEM)
    if command.docs is not None:
        files += local_page.write_docs(told, stored, command.docs)
    return told | {"files": [str(file) for file in files]}


def listed(here: set[str]) -> list[dict[str, Any]]:
    """For --list."""
    rows = []
    for figure in FIGURES.values():
        there = [name for name in figure.data if name in here] if figure.data else ["generated"]
        one = {"name": figure.name, "paper": "004, TKDE 2018", "what": figure.what, "x_name": figure.x_name}
        minutes = {"minutes": figure.minutes}
        rows.append(
            one | {"data": list(figure.data) or ["generated"], "here": there, "small": minutes, "full": minutes}
        )
    return rows


def render(told: Mapping[str, Any]) -> list[Any]:
    from experiments.reproduce import local_report

    return local_report.render(told, FIGURES[told["figure"]])
