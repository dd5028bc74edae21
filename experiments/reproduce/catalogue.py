"""A paper's figures: what they are called, on which ratings each is run, what of it is stored."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmf_jax.errors import DataError, UsageError

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings

Record = Mapping[str, Any]  # a figure's json, as `page.summary` makes it
Stored = Mapping[str, Record]  # records by key, see `Place`

HELD_OUT, SPLIT_SEED = 0.2, 0  # of papers that do not say how they split
SEARCH_SEED = 1_000_003  # of the searches' randomness; no run has it


@dataclass(frozen=True)
class Figure:
    """One figure.

    name: what the command calls it.
    what: what is plotted.
    x_name, y_name: its axes.
    data: the data sets on which it is run; empty where it generates its own.
    log: whether the axes are logarithmic, (x, y).
    minutes: an estimate for two CPU cores, if the runs shared with earlier figures are stored.
    minutes_full: the same at the full scale; None where it is the same.
    """

    name: str
    what: str
    x_name: str
    y_name: str = ""
    data: tuple[str, ...] = ()
    log: tuple[bool, bool] = (False, False)
    minutes: float = 0.0
    minutes_full: float | None = None

    @property
    def stem(self) -> str:
        """The name of its folder."""
        return self.name.replace("/", "-")

    def stem_on(self, ratings: str | None) -> str:
        """How the names of its files begin; None where it generates its ratings."""
        return f"{self.stem}-{ratings}" if ratings else self.stem

    def key_on(self, ratings: str | None) -> str:
        """The key of its record among those that are stored."""
        return self.stem_on(ratings)

    def data_in(self, here: Iterable[str]) -> list[str]:
        """The data sets that it is run on where these are there.

        Raises: DataError where none is there.
        """
        there = [name for name in self.data if name in here]
        if self.data and not there:
            raise DataError(
                f"{self.name} needs {' or '.join(self.data)}",
                where="none is there",
                fix="dpmf data list says how to get them",
            )
        return there

    def load(self, name: str, data_dir: Path | None) -> Ratings:
        """The ratings of one of its data sets."""
        from dpmf_jax.data import datasets

        return datasets.load(name, data_dir=data_dir, split=None)


CLAIMS_WHAT = "what the paper says, statement by statement, by stored rows"
CLAIMS_MINUTES = 1


class Listing(NamedTuple):
    """What --list says of a paper.

    content: of the JSON.
    lines: of the table on the terminal: figure, what, data, small scale, full scale.
    notes: sentences below the table.
    """

    content: dict[str, Any]
    lines: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


def duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def claims_line(claims: Mapping[str, Any]) -> tuple[str, ...]:
    times = [f"0 runs, {claims['minutes']} min"] * 2
    return (claims["name"], claims["what"], claims["data"], *times)


class Place(NamedTuple):
    """Where a figure's results on one data set are kept.

    ratings: the data set; "" where the figure generates its own.
    key: of its record among those that are stored.
    stem: how the names of its files begin.
    """

    figure: Figure
    ratings: str
    key: str
    stem: str


class Catalogue(NamedTuple):
    """number: of the paper.
    cited: where it appeared.
    figures: by name, in the order of the paper.
    every: the names of the figures that `whole` stands for.
    """

    number: str
    cited: str
    figures: Mapping[str, Any]
    every: tuple[str, ...]

    @classmethod
    def of(
        cls,
        number: str,
        cited: str,
        figures: Iterable[Figure],
        every: Iterable[str] | None = None,
    ) -> Catalogue:
        """every: None is all figures."""
        by_name = {figure.name: figure for figure in figures}
        return cls(number, cited, by_name, tuple(by_name if every is None else every))

    @property
    def prefix(self) -> str:
        return f"{self.number}/"

    @property
    def whole(self) -> str:
        return f"{self.number}/all"

    @property
    def claims(self) -> str:
        return f"{self.number}/claims"

    @property
    def claims_stem(self) -> str:
        return f"{self.number}-claims"

    def expand(self, names: Sequence[str]) -> list[Any]:
        """The figures that are named, each once; `whole` stands for `every`.

        Raises: UsageError for one that is not known, with the nearest that is.
        """
        wanted = (one for name in names for one in (self.every if name == self.whole else (name,)))
        return [self.find(name) for name in dict.fromkeys(wanted)]

    def find(self, name: str) -> Any:
        """Raises: UsageError for a figure that is not known, with the nearest that is."""
        if name not in self.figures:
            known = (*self.figures, self.whole, self.claims)
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise UsageError(
                f"there is no figure {name!r} to reproduce",
                where="dpmf reproduce --list names them",
                fix=f"dpmf reproduce {nearest[0]}",
            )
        return self.figures[name]

    def places(self) -> Iterator[Place]:
        """Of all that can be stored."""
        for figure in self.figures.values():
            for data in figure.data or ("",):
                yield Place(figure, data, figure.key_on(data), figure.stem_on(data))

    def stored(self, out: Path) -> dict[str, dict[str, Any]]:
        """The records that earlier calls wrote into the folder, by key, in the table's order.

        Raises: DataError for a file that is no figure's record.
        """
        stored = {}
        for figure, _, key, stem in self.places():
            path = out / figure.stem / f"{stem}.json"
            if not path.is_file():
                continue
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                same = record["figure"] == figure.name and "ratings" in record
                if not same or not isinstance(record["rows"], list):
                    raise ValueError(f"it is of {record['figure']}")
            except (ValueError, KeyError, TypeError) as broken:
                raise DataError(
                    f"not the rows of {figure.name}: {broken!r}",
                    where=str(path),
                    fix=f"delete it, then dpmf reproduce {figure.name}",
                ) from None
            stored[key] = record
        return stored

    def missing(self, stored: Stored) -> list[str]:
        """What was not run, a line of markdown each."""
        lines = [
            f"- {figure.name}{f' on {data}' if data else ''}: `dpmf reproduce {figure.name}`"
            for figure, data, key, _ in self.places()
            if key not in stored
        ]
        return lines or ["Nothing is left out."]

    def listing(self, key: str, here: set[str]) -> Listing:
        """Every figure, and all of them. key: of the paper's part in JSON."""
        rows: list[dict[str, Any]] = []
        for figure in self.figures.values():
            there = [name for name in figure.data if name in here] if figure.data else ["generated"]
            full = figure.minutes if figure.minutes_full is None else figure.minutes_full
            rows.append(
                {
                    "name": figure.name,
                    "paper": self.cited,
                    "what": figure.what,
                    "x_name": figure.x_name,
                    "data": list(figure.data) or ["generated"],
                    "here": there,
                    "small": {"minutes": round(figure.minutes, 1)},
                    "full": {"minutes": round(full, 1)},
                }
            )
        every = list(dict.fromkeys(name for row in rows for name in row["here"]))
        whole: dict[str, Any] = {
            "name": self.whole,
            "paper": self.cited,
            "what": "all of them",
            "x_name": "",
            "data": every or ["generated"],
            "here": every,
        }
        for scale in ("small", "full"):
            minutes = sum(row[scale]["minutes"] for row in rows if row["here"])
            whole[scale] = {"minutes": round(minutes, 1)}
        claims = {
            "name": self.claims,
            "what": CLAIMS_WHAT,
            "data": "--out",
            "minutes": CLAIMS_MINUTES,
        }
        lines: list[tuple[str, ...]] = []
        for row in (*rows, whole):
            minutes = [f"about {duration(row[scale]['minutes'])}" for scale in ("small", "full")]
            times = minutes if row["here"] else ["data absent"] * 2
            lines.append((row["name"], row["what"], " ".join(row["here"] or row["data"]), *times))
        content = {f"{key}_claims": claims, key: [*rows, whole]}
        return Listing(content, [*lines, claims_line(claims)])
