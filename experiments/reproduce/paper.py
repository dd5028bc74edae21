"""What a paper brings to `dpmf reproduce`, and how its figures and claims are made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from experiments.cli import console, devices
from experiments.reproduce import flags, store
from experiments.reproduce.catalogue import Catalogue, Figure, Listing, Record, Stored
from experiments.reproduce.flags import Command

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from experiments.reproduce.claims import Claim

Scale = Literal["small", "full"]
Say = Callable[[str], None]


class Asked(NamedTuple):
    """What a call asks of the figures that share their ratings.

    figures: these figures.
    chosen: all figures of the paper that the call names.
    store: the folder of their runs.
    """

    figures: tuple[Any, ...]
    chosen: tuple[Any, ...]
    command: Command
    num_devices: int
    store: Path
    say: Say = console.say


class Bench(NamedTuple):
    """What a figure's program works with.

    data: of `Programs.data`; None where the figure generates its ratings.
    store: the folder of its runs.
    seeds: of its runs.
    say: prints how it gets on.
    """

    data: Any
    store: Path
    seeds: tuple[int, ...]
    say: Say
    scale: Scale = "small"


class Programs(NamedTuple):
    """What makes a paper's figures and claims. They are imported when needed, since they need jax.

    data: (ratings, asked) -> what figures on the same ratings share.
    run: (figure, bench) -> the outcome, which `summary` takes.
    summary: (figure, outcome, ratings or None, command=, commit=, device=) -> the record.
    files: (figure, record) -> texts by suffix; ".csv" and pictures are published, see `write_docs`.
    render: (record, figure) -> what the terminal shows.
    judge: (stored, folder of the data sets or None) -> the claims, and what their record has more.
    page: (record of the claims, stored) -> the results page.
    """

    data: Callable[[Ratings, Asked], Any]
    run: Callable[[Any, Bench], Any]
    summary: Callable[..., dict[str, Any]]
    files: Callable[[Any, Record], dict[str, str]]
    render: Callable[[Record, Any], list[Any]]
    judge: Callable[[Stored, Path | None], tuple[list[Claim], dict[str, Any]]]
    page: Callable[[Record, Stored], str]


class Paper(NamedTuple):
    """catalogue: of its figures.
    key: of its part in the command's JSON.
    claims_key: the same of its claims.
    judging: what is said while claims are judged, beside the stored rows.
    flags: those of the command, beside --seeds, that mean something to its figures.
    seeds: (scale) -> those of a figure where none are asked for.
    programs: () -> `Programs`.
    check: (figures, command) -> None; raises UsageError before anything is loaded.
    listing: (folders that are there, command) -> what --list says.
    """

    catalogue: Catalogue
    key: str
    claims_key: str
    judging: str
    flags: tuple[str, ...]
    seeds: Callable[[Scale], tuple[int, ...]]
    programs: Callable[[], Programs]
    check: Callable[[Sequence[Any], Command], object]
    listing: Callable[[set[str], Command], Listing]

    @classmethod
    def of(
        cls,
        catalogue: Catalogue,
        key: str,
        *,
        judging: str,
        seeds: Callable[[Scale], tuple[int, ...]],
        programs: Callable[[], Programs],
        flags: tuple[str, ...] = (),
    ) -> Paper:
        """A paper whose figures take what the catalogue says of them."""
        return cls(
            catalogue,
            key,
            f"{key}_claims",
            judging,
            flags,
            seeds,
            programs,
            check=lambda figures, command: None,
            listing=lambda here, command: catalogue.listing(key, here),
        )


def reproduce(
    paper: Paper, chosen: Sequence[Figure], command: Command, here: set[str]
) -> list[dict[str, Any]]:
    """Trains what is not stored, compares, writes; a record for each figure on each data set that
    is there. here: the data sets that are there.

    Raises: DataError where none of a figure's data sets is there.
    """
    from experiments.cli import provenance
    from experiments.reproduce import page

    num_devices, programs = devices.use(command.devices), paper.programs()
    scale = command.scale or "small"
    seeds = paper.seeds(scale) if command.seeds is None else command.seeds
    wanted = [
        (figure, name) for figure in chosen for name in figure.data_in(here) or ("generated",)
    ]
    loaded: dict[str, Ratings] = {}
    shared: dict[str, Any] = {}
    records = []
    for figure, name in wanted:
        folder = command.out / name
        if figure.data and name not in loaded:
            loaded[name] = figure.load(name, command.data_dir)
        ratings = loaded.get(name)
        with store.locked(folder):
            if ratings is not None and name not in shared:
                together = tuple(other for other, its in wanted if its == name)
                asked = Asked(together, tuple(chosen), command, num_devices, folder)
                shared[name] = programs.data(ratings, asked)
            outcome = programs.run(
                figure, Bench(shared.get(name), folder, seeds, console.say, scale)
            )
        record = programs.summary(
            figure,
            outcome,
            ratings,
            command=flags.repeat_of(command, figure.name),
            commit=provenance.commit(),
            device=provenance.device(),
        )
        out = command.out / figure.stem
        files = page.write(figure, record, out, programs.files(figure, record))
        records.append(record | {"out": str(out), "files": [str(file) for file in files]})
    return records


def judge(paper: Paper, command: Command) -> dict[str, Any]:
    """The record of a paper's claims by stored rows. Writes it, and with --docs the page."""
    from experiments.cli import provenance
    from experiments.reproduce import page

    devices.use(command.devices)
    programs, catalogue = paper.programs(), paper.catalogue
    stored = catalogue.stored(command.out)
    console.say(
        f"{catalogue.claims}: rows of {len(stored)} figures in {command.out}; {paper.judging}"
    )
    claims, more = programs.judge(stored, command.data_dir)
    docs = None if command.docs is None else Path("docs") / "results"
    record = page.claims_summary(
        catalogue,
        claims,
        stored,
        command=flags.command_line(Command(figures=(catalogue.claims,), docs=docs)),
        commit=provenance.commit(),
        device=provenance.device(),
        **more,
    )
    files = page.write_claims(catalogue, record, command.out)
    if command.docs is not None:
        text = programs.page(record, stored)
        files += page.write_docs(
            catalogue, record, stored, command.docs, page=text, files=programs.files
        )
    return record | {"files": [str(file) for file in files]}
