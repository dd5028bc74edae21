"""Figures and claims of a paper on paper: the record as json, its rows as csv, pages of markdown.

All of it looks at errors on ratings, which no price covers: for the curator's eyes, and every file
says so.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models import storage
from experiments.cli import console
from experiments.reproduce import comparison, pictures
from experiments.reproduce.catalogue import Catalogue, Figure, Record, Stored
from experiments.reproduce.claims import VERDICTS, Claim, claims_csv, count_verdicts
from experiments.reproduce.comparison import Row
from experiments.reproduce.pictures import NOTICE


def comparison_of(rows: Sequence[Row]) -> dict[str, Any]:
    """What a record says of the comparison with the paper, beside its rows."""
    checked = [row for row in rows if row.result != "informative"]
    worst = comparison.worst(rows)
    return {
        "checked": len(checked),
        "outside": sum(row.result == "outside" for row in checked),
        "worst": None if worst is None else worst._asdict(),
    }


def describe(ratings: Ratings) -> dict[str, Any]:
    return {"name": ratings.name, "count": ratings.num_ratings, "sha256": ratings.sha256()}


class Outcome(NamedTuple):
    """What a figure's program gives.

    settings: by series, what it was run with and what it promises.
    notes: to be read beside the rows.
    more: what else the record has, by name.
    """

    rows: list[Row]
    settings: list[dict[str, Any]]
    notes: list[str]
    more: dict[str, Any]

    def row(
        self, series: str, axis: str, kind: str, x: float, values: Sequence[float], **rest: Any
    ) -> None:
        """Adds a row. rest: of `comparison.row`."""
        self.rows.append(comparison.row(series, axis, kind, x, values, **rest))

    def setting(
        self,
        series: str,
        x: float | None,
        mechanism: str,
        headline: str,
        seeds: Iterable[int] = (),
        measured: Sequence[Any] = (),
        **more: Any,
    ) -> None:
        """Adds what a series was run with and what it promises.

        x: where it promises that; None for everywhere.
        measured: runs that say their commit, device and seconds.
        more: what else the record keeps of it.
        """
        if measured:
            more["commits"] = sorted({one.commit for one in measured})
            more["devices"] = sorted({one.device for one in measured})
            more["seconds"] = math.fsum(one.seconds for one in measured)
        content = {"series": series, "x": x, "mechanism": mechanism, "headline": headline}
        self.settings.append({**content, "seeds": list(seeds), **more})


def summary(
    figure: Figure,
    outcome: Outcome,
    ratings: Ratings | None,
    *,
    command: str,
    commit: str,
    device: str,
) -> dict[str, Any]:
    """A figure's record: everything, as JSON can hold it.

    commit, device: of what was not kept with its runs.
    """
    rows, settings = outcome.rows, outcome.settings
    commits = {one for setting in settings for one in setting.get("commits", ())}
    devices = {one for setting in settings for one in setting.get("devices", ())}
    return console.plain(
        {
            "figure": figure.name,
            "notice": NOTICE,
            "result": comparison.verdict(rows),
            **comparison_of(rows),
            "ratings": None if ratings is None else describe(ratings),
            "settings": settings,
            **outcome.more,
            "notes": outcome.notes,
            "command": command,
            "commits": sorted(commits or {commit}),
            "devices": sorted(devices or {device}),
            "rows": [row._asdict() for row in rows],
        }
    )


def stem(figure: Figure, record: Record) -> str:
    """How the names of a record's files begin."""
    return figure.stem_on(record["ratings"] and record["ratings"]["name"])


def title(figure: Figure, record: Record) -> str:
    where = "generated ratings" if record["ratings"] is None else record["ratings"]["name"]
    return f"Paper {figure.name.partition('/')[0]}: {figure.what}, {where}"


def table(record: Record) -> str:
    """The rows as csv, each complete in itself, with settings, guarantee, commit and device."""
    rows = []
    for row in record["rows"]:
        setting = next(
            one
            for one in record["settings"]
            if one["series"] == row["series"] and one["x"] in (None, row["x"])
        )
        rows.append(
            {
                "figure": record["figure"],
                **row,
                "values": " ".join(map(str, row["values"])),
                "config": json.dumps(setting.get("config"), ensure_ascii=False),
                "seeds": " ".join(map(str, setting["seeds"])),
                "guarantee": setting["headline"],
                "ratings": record["ratings"] and record["ratings"]["name"],
                "ratings_sha256": record["ratings"] and record["ratings"]["sha256"],
                "commit": " ".join(record["commits"]),
                "device": " ".join(record["devices"]),
                "notice": record["notice"],
            }
        )
    return as_csv(rows)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line each, under the names of the first."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return lines.getvalue()


def as_json(record: Record) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


Section = Callable[[Any, Record, str], list[str]]  # (figure, record, name of the picture)


def files(
    figure: Figure, record: Record, section: Section, picture: Callable[[Any, Record], str]
) -> dict[str, str]:
    """csv, json, page and, where matplotlib is installed, picture, as text by suffix."""
    drawn = pictures.if_installed(lambda: {".svg": picture(figure, record)})
    name = f"{stem(figure, record)}.svg"
    lines = [f"# {title(figure, record)}", "", *section(figure, record, name), ""]
    return {".csv": table(record), ".json": as_json(record), **drawn, ".md": "\n".join(lines)}


def write(figure: Figure, record: Record, out: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes a figure's files in `out`; returns the paths. texts: by suffix.

    Pictures of an earlier call that this one does not draw are removed.
    """
    name = stem(figure, record)
    content = {f"{name}{suffix}": text for suffix, text in texts.items()}
    for left in out.glob(f"{name}[.-]*svg"):
        if left.name not in content:
            left.unlink()
    return _write(out, content)


def _write(folder: Path, content: Mapping[str, str]) -> list[Path]:
    """Writes each text under its name; returns the paths."""
    paths = []
    for name, text in content.items():
        paths.append(folder / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(paths[-1], text.encode())
    return paths


def joined(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def opening(figure: Figure, record: Record, svg: str) -> list[str]:
    """How a figure's section begins: the notice, the picture, what is to be read beside it."""
    lines = [f"**{record['notice'].capitalize()}.**", "", f"![{figure.what}]({svg})", ""]
    return lines + [f"{note}\n" for note in record["notes"]]


def ending(record: Record) -> list[str]:
    """How a figure's section ends: what it was made of, and how to repeat it."""
    its = record["ratings"]
    where = f"Ratings: {its['name']}, {its['count']}, sha256 {its['sha256']}. " if its else ""
    by = f"Commit {joined(record['commits'])}; device {joined(record['devices'])}."
    return ["", f"{where}{by}", f"Repeat: `{record['command']}`"]


def axes_of(record: Record, known: Iterable[str]) -> list[str]:
    """Of the known axes those that a record has rows on."""
    return [axis for axis in known if any(row["axis"] == axis for row in record["rows"])]


def row_of(cells: Iterable[str]) -> str:
    """A row of a markdown table."""
    return f"| {' | '.join(cells)} |"


def heading(first: str, places: Sequence[str]) -> list[str]:
    """The first two lines of a markdown table whose columns, but for the first, are numbers."""
    names = f"| {first}".rstrip() + f" | {' | '.join(places)} |"
    return [names, "|---" + "|---:" * len(places) + "|"]


def places(rows: Iterable[Record]) -> list[float]:
    """Where on the axis rows stand; levels, which are everywhere, have no place of their own."""
    return sorted({float(row["x"]) for row in rows if row["kind"] != "level"})


def grid(
    rows: Sequence[Record],
    x_name: str,
    cell: Callable[[Record], str],
    *,
    name: Callable[[str], str] = str,
    place: Callable[[float], str] = "{:g}".format,
) -> list[str]:
    """A markdown table: a line for each series, a column for each place; a level fills its line."""
    columns = places(rows)
    lines = heading(x_name, list(map(place, columns)))
    for series in dict.fromkeys(row["series"] for row in rows):
        its = [row for row in rows if row["series"] == series]
        cells = {float(row["x"]): cell(row) for row in its}
        if its[0]["kind"] == "level":
            cells = dict.fromkeys(columns, cell(its[0]))
        lines.append(row_of([name(series), *(cells.get(x, "") for x in columns)]))
    return lines


def claims_summary(
    catalogue: Catalogue, claims: Sequence[Claim], stored: Stored, **rest: Any
) -> dict[str, Any]:
    """The record of a paper's claims. rest: command, commit, device and what else is to be kept."""
    return console.plain(
        {
            "claims": catalogue.claims,
            "notice": NOTICE,
            "counts": {
                verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS
            },
            "beside": "",
            **rest,
            "from": {
                key: {name: record.get(name) for name in ("ratings", "commits", "devices")}
                for key, record in stored.items()
            },
            "rows": [claim._asdict() for claim in claims],
        }
    )


def claims_table(record: Record) -> list[str]:
    lines = [
        "| statement, in our words | where | verdict | measured | how | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        cells = (
            row["statement"],
            row["where"],
            f"**{row['verdict']}**",
            row["value"],
            row["how"],
            row["why"],
        )
        lines.append(row_of(cell.replace("|", "\\|") for cell in cells))
    return lines


def write_claims(catalogue: Catalogue, record: Record, out: Path) -> list[Path]:
    """Writes STEM.csv, .json and .md in `out`/STEM; returns their paths."""
    beside = f"Sound beside published. {record['beside']}"
    page = [
        f"# Paper {catalogue.number}: {count_verdicts(record)}",
        "",
        f"**{record['notice'].capitalize()}.**",
        "",
        *claims_table(record),
        "",
        *([beside, ""] if record["beside"] else []),
        f"Commit {record['commit']}; device {record['device']}. Repeat: `{record['command']}`",
        "",
    ]
    name = catalogue.claims_stem
    content = {".csv": claims_csv(record), ".json": as_json(record), ".md": "\n".join(page)}
    return _write(out / name, {f"{name}{suffix}": text for suffix, text in content.items()})


def write_docs(
    catalogue: Catalogue,
    record: Record,
    stored: Stored,
    docs: Path,
    *,
    page: str,
    files: Callable[[Any, Record], dict[str, str]],
) -> list[Path]:
    """Writes the results page in `docs`, its pictures and the csv of its rows in a folder beside
    it; returns the paths. What an earlier call left there and this one does not write is removed.

    files: (figure, record) -> texts by suffix; all but the record and its page are published.

    Raises: ModuleNotFoundError without matplotlib; nothing is written then.
    """
    folder = catalogue.number
    content = {f"{folder}/{catalogue.claims_stem}.csv": claims_csv(record)}
    for one in stored.values():
        figure = catalogue.figures[one["figure"]]
        texts = files(figure, one)
        if ".svg" not in texts:
            raise ModuleNotFoundError("matplotlib", name="matplotlib")
        published = {suffix: texts[suffix] for suffix in texts if suffix not in (".json", ".md")}
        name = stem(figure, one)
        content |= {f"{folder}/{name}{suffix}": text for suffix, text in published.items()}
    content[f"{folder}.md"] = page
    for place in catalogue.places():
        for left in (docs / folder).glob(f"{place.stem}[.-]*"):
            if f"{folder}/{left.name}" not in content:
                left.unlink()
    return _write(docs, content)


UNPRICED = (
    "All of this is unpriced error on public research data sets, which may be shown for that"
    " reason; for ratings of your own the same numbers are for the curator's eyes only."
)


def results(
    record: Record,
    *,
    heading: str,
    verdict: str,
    picture: str,
    introduction: Sequence[str],
    sections: Mapping[str, Sequence[str]],
) -> str:
    """The results page of a paper, for somebody who has not read it.

    verdict: the first sentences; how many statements hold follows.
    picture: markdown of the first one; "" for none.
    introduction: paragraphs. sections: lines by heading; one without lines is left out.
    """
    counts = record["counts"]
    number = record["claims"].partition("/")[0]
    counted = (
        f"Of {sum(counts.values())} readings of what it says, {counts['reproduced']} hold here,"
        f" {counts['not reproduced']} do not, and {counts['not testable here']} could not be"
        " tested."
    )
    lines = [f"# Paper {number}: {heading}", "", f"**{verdict} {counted}**", ""]
    lines += [f"**{record['beside']}**", ""] if record["beside"] else []
    lines += [picture, ""] if picture else []
    for paragraph in introduction:
        lines += [paragraph, ""]
    for name, section in sections.items():
        lines += [f"## {name}", "", *section, ""] if section else []
    where = f"`{record['command']}` from the rows in `{number}/`"
    return "\n".join([*lines, f"This page and its pictures are written by {where}.", ""])


def failed(record: Record) -> list[str]:
    """The statements that do not hold, an item each."""
    return [
        f"- *{row['statement']}* ({row['where']}) Measured: {row['value']}."
        for row in record["rows"]
        if row["verdict"] == "not reproduced"
    ]


def every_section(
    catalogue: Catalogue, record: Record, stored: Stored, section: Section
) -> dict[str, Sequence[str]]:
    """What does not hold, every statement, every figure, what was not run."""
    lines = []
    for one in stored.values():
        figure = catalogue.figures[one["figure"]]
        svg = f"{catalogue.number}/{stem(figure, one)}.svg"
        lines += ["", f"### {title(figure, one)}", "", *section(figure, one, svg)]
    return {
        "What does not hold": failed(record),
        "Statements": claims_table(record),
        "Figures": lines[1:] or ["None has been run."],
        "What was not run": catalogue.missing(stored),
    }
