"""A paper whose figures are a plain list: what they are called, on which ratings each is run, what
of it is stored.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dpmf_jax.errors import DataError, UsageError

Stored = Mapping[str, Mapping[str, Any]]  # a figure's json, by its stem on some ratings

HELD_OUT, SPLIT_SEED = 0.2, 0  # of papers that do not say how they split
SEARCH_SEED = 1_000_003  # of the searches' randomness; no run has it


class Figure(NamedTuple):
    """name: what the command calls it. what: is plotted. x_name, y_name: its axes. data: where it
    is run, if there; a figure without any makes its own.

    log: whether the axes are logarithmic, (x, y). minutes: an estimate for two CPU cores, where the
    runs that it shares with the paper's figures before it are there; minutes_full: at the full
    scale, where that is another.
    """

    name: str
    what: str
    x_name: str
    y_name: str
    data: tuple[str, ...]
    log: tuple[bool, bool]
    minutes: float
    minutes_full: float | None = None

    @property
    def stem(self) -> str:
        return self.name.replace("/", "-")

    def stem_on(self, ratings: str | None) -> str:
        """Of its files; ratings: their name, None where the figure makes its own."""
        return f"{self.stem}-{ratings}" if ratings else self.stem


class Catalogue(NamedTuple):
    """number: of the paper. cited: where it appeared. figures: by name, in the order of the
    paper.
    """

    number: str
    cited: str
    figures: Mapping[str, Figure]

    @classmethod
    def of(cls, number: str, cited: str, figures: Iterable[Figure]) -> Catalogue:
        return cls(number, cited, {figure.name: figure for figure in figures})

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

    def expand(self, names: Sequence[str]) -> list[Figure]:
        """The figures that are named, each once; `whole` stands for all of them.

        Raises: UsageError for one that is not known, with the nearest that is.
        """
        chosen = []
        asked = (one for name in names for one in (self.figures if name == self.whole else (name,)))
        for name in dict.fromkeys(asked):
            if name not in self.figures:
                nearest = difflib.get_close_matches(
                    name, (*self.figures, self.whole, self.claims), n=1, cutoff=0.0
                )
                raise UsageError(
                    f"there is no figure {name!r} to reproduce",
                    where="dpmf reproduce --list names them",
                    fix=f"dpmf reproduce {nearest[0]}",
                )
            chosen.append(self.figures[name])
        return chosen

    def places(self) -> Iterator[tuple[Figure, str, str]]:
        """(figure, name of the ratings or "", stem of the files), of all that can be stored."""
        for figure in self.figures.values():
            for data in figure.data or ("",):
                yield figure, data, figure.stem_on(data)

    def stored(self, out: Path) -> dict[str, dict[str, Any]]:
        """The json that earlier calls wrote into the folder, by stem, in the table's order.

        Raises: DataError for a file that is no figure's json.
        """
        found = {}
        for figure, _, stem in self.places():
            path = out / figure.stem / f"{stem}.json"
            if not path.is_file():
                continue
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                if told["figure"] != figure.name or not isinstance(told["rows"], list):
                    raise ValueError(f"it is of {told['figure']}")
            except (ValueError, KeyError, TypeError) as broken:
                raise DataError(
                    f"not the rows of {figure.name}: {broken!r}",
                    where=str(path),
                    fix=f"delete it, then dpmf reproduce {figure.name}",
                ) from None
            found[stem] = told
        return found

    def missing(self, found: Stored) -> list[str]:
        """What was not run, a line of markdown each."""
        lines = [
            f"- {figure.name}{f' on {data}' if data else ''}: `dpmf reproduce {figure.name}`"
            for figure, data, stem in self.places()
            if stem not in found
        ]
        return lines or ["Nothing is left out."]

    def listed(self, here: set[str]) -> list[dict[str, Any]]:
        """For --list: every figure, and all of them."""
        rows = []
        for figure in self.figures.values():
            there = [name for name in figure.data if name in here] if figure.data else ["generated"]
            full = figure.minutes if figure.minutes_full is None else figure.minutes_full
            minutes = {"small": figure.minutes, "full": full}
            rows.append(
                self._listed(figure.name, figure.what, figure.x_name, figure.data, there, minutes)
            )
        every = list(dict.fromkeys(name for row in rows for name in row["here"]))
        minutes = {
            scale: sum(row[scale]["minutes"] for row in rows if row["here"])
            for scale in ("small", "full")
        }
        return [*rows, self._listed(self.whole, "all of them", "", tuple(every), every, minutes)]

    def _listed(
        self,
        name: str,
        what: str,
        x_name: str,
        data: tuple[str, ...],
        here: list[str],
        minutes: Mapping[str, float],
    ) -> dict[str, Any]:
        about = {"name": name, "paper": self.cited, "what": what, "x_name": x_name}
        amounts = {scale: {"minutes": round(value, 1)} for scale, value in minutes.items()}
        return about | {"data": list(data) or ["generated"], "here": here, **amounts}
