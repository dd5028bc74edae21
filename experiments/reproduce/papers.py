"""Figures and claims of a paper with a `catalogue`, on paper: what its json, csv and pages have in
common.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dpmf_jax.data.ratings import Ratings
from experiments.cli import console
from experiments.reproduce import comparison
from experiments.reproduce.catalogue import Catalogue, Figure, Stored
from experiments.reproduce.claims import VERDICTS, Claim, Told, claims_csv, counted
from experiments.reproduce.comparison import Row
from experiments.reproduce.files import written
from experiments.reproduce.pictures import NOTICE


class Bench(NamedTuple):
    """What a figure's program works with. data: of `Programs.data`. say: where it tells how it gets
    on.
    """

    data: Any
    store: Path
    seeds: tuple[int, ...]
    say: Callable[[str], None]


class Programs(NamedTuple):
    """What the command calls for a paper's figures; made when it is needed, since it imports jax.

    data: (ratings, num_devices) -> what runs on the same ratings share. run: (figure, data or None,
      store, seeds, say) -> rows, settings and whatever `summary` takes. summary: (figure, outcome,
      ratings or None, command=, commit=, device=) -> told. files: (figure, told) -> text by suffix.
      render: (told, figure) -> what the terminal shows.
    judge: (stored) -> the claims. page: (claims told, stored) -> the results page.
    """

    data: Callable[..., Any]
    run: Callable[..., Any]
    summary: Callable[..., dict[str, Any]]
    files: Callable[[Figure, Told], dict[str, str]]
    render: Callable[[Told, Figure], list[Any]]
    judge: Callable[[Stored], list[Claim]]
    page: Callable[[Told, Stored], str]


# ---------------------------------------------------------------------------------------------- fig


def summary(
    figure: Figure,
    rows: Sequence[Row],
    settings: Sequence[Mapping[str, Any]],
    ratings: Ratings | None,
    *,
    command: str,
    commit: str,
    device: str,
    **more: Any,
) -> dict[str, Any]:
    """Everything, as JSON can hold it. commit and device: of what was not kept with its runs."""
    checked = [row for row in rows if row.result != "informative"]
    worst = comparison.worst(rows)
    commits = {one for setting in settings for one in setting.get("commits", ())}
    devices = {one for setting in settings for one in setting.get("devices", ())}
    about = None
    if ratings is not None:
        about = {"name": ratings.name, "count": ratings.num_ratings, "sha256": ratings.sha256()}
    return console.plain(
        {
            "figure": figure.name,
            "notice": NOTICE,
            "result": comparison.verdict(rows),
            "checked": len(checked),
            "outside": sum(row.result == "outside" for row in checked),
            "worst": None if worst is None else worst._asdict(),
            "ratings": about,
            "settings": list(settings),
            **more,
            "command": command,
            "commits": sorted(commits or {commit}),
            "devices": sorted(devices or {device}),
            "rows": [row._asdict() for row in rows],
        }
    )


def stem(figure: Figure, told: Told) -> str:
    return figure.stem_on(told["ratings"] and told["ratings"]["name"])


def title(figure: Figure, told: Told) -> str:
    where = "generated ratings" if told["ratings"] is None else told["ratings"]["name"]
    return f"Paper {figure.name.partition('/')[0]}: {figure.what}, {where}"


def table(told: Told) -> str:
    """The rows as csv, each complete in itself: settings, guarantee, commit, device and notice
    included.
    """
    rows = []
    for row in told["rows"]:
        setting = setting_of(told, row)
        rows.append(
            {
                "figure": told["figure"],
                **row,
                "values": " ".join(map(str, row["values"])),
                "config": json.dumps(setting.get("config"), ensure_ascii=False),
                "seeds": " ".join(map(str, setting["seeds"])),
                "guarantee": setting["headline"],
                "ratings": told["ratings"] and told["ratings"]["name"],
                "ratings_sha256": told["ratings"] and told["ratings"]["sha256"],
                "commit": " ".join(told["commits"]),
                "device": " ".join(told["devices"]),
                "notice": told["notice"],
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


def setting_of(told: Told, row: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(
        s for s in told["settings"] if s["series"] == row["series"] and s["x"] in (None, row["x"])
    )


def files(
    figure: Figure,
    told: Told,
    section: Callable[[Figure, Told, str], list[str]],
    picture: Callable[[Figure, Told], str],
) -> dict[str, str]:
    """csv, json, page and, where matplotlib is installed, picture, as text by suffix."""
    content = {
        ".csv": table(told),
        ".json": json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    try:
        content[".svg"] = picture(figure, told)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        console.say(
            "matplotlib is not installed, so there is no svg: pip install 'dpmf-jax[report]'"
        )
    name = f"{stem(figure, told)}.svg"
    content[".md"] = "\n".join([f"# {title(figure, told)}", "", *section(figure, told, name), ""])
    return content


def write(figure: Figure, told: Told, out: Path, programs: Programs) -> list[Path]:
    """Writes a figure's files in `out`; returns their paths."""
    name = stem(figure, told)
    return written(
        out, {f"{name}{suffix}": text for suffix, text in programs.files(figure, told).items()}
    )


def joined(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


# ---------------------------------------------------------------------------------------------- cla


def claims_summary(
    catalogue: Catalogue, claims: Sequence[Claim], found: Stored, **rest: Any
) -> dict[str, Any]:
    """The table as JSON can hold it. rest: command, commit, device."""
    return {
        "claims": catalogue.claims,
        "notice": NOTICE,
        "counts": {
            verdict: sum(claim.verdict == verdict for claim in claims) for verdict in VERDICTS
        },
        "beside": "",
        **rest,
        "from": {
            name: {"ratings": told["ratings"], "commits": told["commits"]}
            for name, told in found.items()
        },
        "rows": [claim._asdict() for claim in claims],
    }


def claims_table(told: Told) -> list[str]:
    lines = [
        "| statement, in our words | where | verdict | measured | how | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in told["rows"]:
        cells = (
            row["statement"],
            row["where"],
            f"**{row['verdict']}**",
            row["value"],
            row["how"],
            row["why"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def failed(told: Told) -> list[str]:
    """A section on what does not hold, if anything does not."""
    rows = [row for row in told["rows"] if row["verdict"] == "not reproduced"]
    if not rows:
        return []
    items = [f"- *{row['statement']}* ({row['where']}) Measured: {row['value']}." for row in rows]
    return ["## What does not hold", "", *items, ""]


def rest_of_page(
    catalogue: Catalogue,
    told: Told,
    found: Stored,
    section: Callable[[Figure, Told, str], list[str]],
) -> list[str]:
    """What follows a results page's verdict and picture: what does not hold, every statement, every
    figure.
    """
    lines = [
        (
            "All of this is unpriced error on public research data sets, which may be shown for"
            " that reason; for ratings of your own the same numbers are for the curator's eyes"
            " only."
        ),
        "",
        *failed(told),
        *("## Statements", "", *claims_table(told), "", "## Figures", ""),
    ]
    for name, one in found.items():
        figure = catalogue.figures[one["figure"]]
        lines += [
            f"### {title(figure, one)}",
            "",
            *section(figure, one, f"{catalogue.number}/{name}.svg"),
            "",
        ]
    lines += ["## What was not run", "", *catalogue.missing(found), ""]
    where = f"`{told['command']}` from the rows in `{catalogue.number}/`"
    return [*lines, f"This page and its pictures are written by {where}.", ""]


def write_claims(catalogue: Catalogue, told: Told, out: Path) -> list[Path]:
    """Writes STEM.csv, .json and .md in `out`/STEM; returns their paths."""
    last = f"Commit {told['commit']}; device {told['device']}. Repeat: `{told['command']}`"
    top = f"# Paper {catalogue.number}: {counted(told)}"
    page = [top, "", f"**{told['notice'].capitalize()}.**", "", *claims_table(told), "", last, ""]
    name = catalogue.claims_stem
    content = {
        f"{name}.csv": claims_csv(told),
        f"{name}.json": json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        f"{name}.md": "\n".join(page),
    }
    return written(out / name, content)


def write_docs(
    catalogue: Catalogue, told: Told, found: Stored, docs: Path, programs: Programs
) -> list[Path]:
    """Writes the results page in `docs`, its pictures and the csv of its rows in a folder beside
    it; returns the paths.

    Raises: ModuleNotFoundError without matplotlib; nothing is written then.
    """
    folder = catalogue.number
    content = {f"{folder}/{catalogue.claims_stem}.csv": claims_csv(told)}
    for name, one in found.items():
        made = programs.files(catalogue.figures[one["figure"]], one)
        if ".svg" not in made:
            raise ModuleNotFoundError("matplotlib", name="matplotlib")
        shown = {suffix: text for suffix, text in made.items() if suffix not in (".json", ".md")}
        content |= {f"{folder}/{name}{suffix}": text for suffix, text in shown.items()}
    content[f"{folder}.md"] = programs.page(told, found)
    for _, _, name in catalogue.places():
        if name not in found:  # of an earlier call
            for left in (docs / folder).glob(f"{name}[.-]*"):
                left.unlink()
    return written(docs, content)
