"""`dpmf reproduce` for a paper with a catalogue: its figures on every data set that is there, and
its claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dpmf_jax.errors import DataError, UsageError
from experiments.cli import console, devices
from experiments.reproduce.catalogue import Catalogue, Figure

if TYPE_CHECKING:
    from experiments.reproduce.flags import Command
    from experiments.reproduce.papers import Programs

UNUSED = ("scale", "beside", "ranks", "series")  # flags of paper 001's figures


class Paper(NamedTuple):
    """key: of its part in the command's JSON. looks_at: what is said while claims are judged,
    beside the stored rows.

    seeds: () -> those of a figure where none are asked for. programs: see `papers.Programs`.
    at_scale: (scale) -> the same paper at it, where it has scales; it is at the small one.
    """

    key: str
    catalogue: Catalogue
    looks_at: str
    seeds: Callable[[], tuple[int, ...]]
    programs: Callable[[], Programs]
    at_scale: Callable[[Literal["small", "full"]], Paper] | None = None


def check(paper: Paper, command: Command) -> list[Figure]:
    """The figures of this paper that are asked for.

    Raises: UsageError for one that is not known, and for flags that mean nothing to them where
      nothing else is asked.
    """
    names = [name for name in command.figures if name.startswith(paper.catalogue.prefix)]
    if names and len(names) == len(command.figures):
        for name in UNUSED:
            if getattr(command, name) not in (None, "auto") and not (
                name == "scale" and paper.at_scale
            ):
                raise UsageError(
                    f"--{name} goes with paper 001's figures", fix=f"leave out --{name}"
                )
    return paper.catalogue.expand([name for name in names if name != paper.catalogue.claims])


def reproduce(
    paper: Paper, chosen: Sequence[Figure], command: Command, here: set[str], repeat: str
) -> list[dict[str, Any]]:
    """Trains what is not stored, compares, writes; one result for each figure on each data set that
    is there.

    repeat: the command that does it again, with {figure} in it.

    Raises: DataError where none of a figure's data sets is there.
    """
    from dpmf_jax.data import datasets
    from dpmf_jax.models import storage
    from experiments.cli import provenance
    from experiments.reproduce import papers

    if paper.at_scale is not None and command.scale is not None:
        paper = paper.at_scale(command.scale)
    num_devices, programs = devices.use(command.devices), paper.programs()
    seeds = paper.seeds() if command.seeds is None else command.seeds
    done = []
    shared: dict[str, Any] = {}
    for figure in chosen:
        there: list[str | None] = (
            [name for name in figure.data if name in here] if figure.data else [None]
        )
        if not there:
            names = " or ".join(figure.data)
            raise DataError(
                f"{figure.name} needs {names}",
                where="none is there",
                fix="dpmf data list says how to get them",
            )
        for name in there:
            store = command.out / (name or "generated")
            with storage.lock(storage.private_folder(store)):
                if name is not None and name not in shared:
                    ratings = datasets.load(name, data_dir=command.data_dir, split=None)
                    shared[name] = programs.data(ratings, num_devices=num_devices)
                data = None if name is None else shared[name]
                outcome = programs.run(figure, data, store, seeds, console.say)
            told = programs.summary(
                figure,
                outcome,
                None if data is None else data.ratings,
                command=repeat.format(figure=figure.name),
                commit=provenance.commit(),
                device=provenance.device(),
            )
            files = papers.write(figure, told, command.out / figure.stem, programs)
            done.append(
                told
                | {
                    "out": str(command.out / figure.stem),
                    "files": [str(file) for file in files],
                }
            )
    return done


def claimed(paper: Paper, command: Command, repeat: str) -> dict[str, Any]:
    """The table of claims, from the rows that are stored; writes it, and the results page where
    --docs asks for it.
    """
    from experiments.cli import provenance
    from experiments.reproduce import papers

    devices.use(command.devices)
    catalogue, programs = paper.catalogue, paper.programs()
    stored = catalogue.stored(command.out)
    console.say(
        f"{catalogue.claims}: rows of {len(stored)} figures in {command.out}; {paper.looks_at}"
    )
    rest = {"command": repeat, "commit": provenance.commit(), "device": provenance.device()}
    told = console.plain(papers.claims_summary(catalogue, programs.judge(stored), stored, **rest))
    files = papers.write_claims(catalogue, told, command.out)
    if command.docs is not None:
        files += papers.write_docs(catalogue, told, stored, command.docs, programs)
    return told | {"files": [str(file) for file in files]}
