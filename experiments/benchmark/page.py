"""The benchmark on paper: of each data set its rows as JSON, a page, and pictures.

All of it is computed from ratings and is not priced: for the curator. Of published ratings anybody
is the curator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting.digits import printed_up
from accounting.plain import TYPICAL
from dpmf_jax.models import storage
from experiments.benchmark import pictures, submissions
from experiments.benchmark.protocol import LIST, LONG_LIST, SPLITS
from experiments.cli import console

Row = Mapping[str, Any]
COLUMNS = (
    ("RMSE", "rmse"),
    ("MAE", "mae"),
    (f"NDCG@{LIST}", "ndcg_at_10"),
    (f"recall@{LONG_LIST}", "recall_at_20"),
    ("coverage", "coverage_at_10"),
    ("popularity", "popularity_at_10"),
)


def write(folder: Path, scale: str, rows: Sequence[Row], others: Path | None = None) -> list[str]:
    """Writes README.md, schema.json, and of each data set DATA.json, DATA.md and its pictures; the
    paths.

    others: the folder of submissions, whose rows stand beside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def keep(name: str, text: str) -> None:
        storage.write_bytes(folder / name, text.encode())
        written.append(str(folder / name))

    storage.write_json(folder / "schema.json", submissions.schema())
    written.append(str(folder / "schema.json"))
    beside = submissions.all_rows(others) if others is not None and others.is_dir() else []
    whole = [row for row in (*rows, *beside) if row["repeats"]]
    for data in dict.fromkeys(row["data"] for row in whole):
        own = [row for row in whole if row["data"] == data]
        kept = {"scale": scale, "rows": list(map(console.plain, own))}
        storage.write_json(folder / f"{data}.json", kept)
        written.append(str(folder / f"{data}.json"))
        drawn = pictures.draw(data, own)
        for name, svg in drawn.items():
            keep(f"{name}.svg", svg)
        keep(f"{data}.md", _page(data, own, drawn))
    keep("README.md", _index(scale, rows, whole))
    return written


def _index(scale: str, rows: Sequence[Row], whole: Sequence[Row]) -> str:
    lines = [
        "# The benchmark of private recommenders",
        "",
        "What each mechanism gives at which price, on the same splits, beside recommenders without"
        " privacy. [The protocol](protocol.md) says what each number is, and how to add yours.",
        f"This page is made by `dpmf benchmark --scale {scale}`.",
        "",
        "| data | rows | split | settings | repeats |",
        "|---|---|---|---|---|",
    ]
    for data, split in dict.fromkeys((row["data"], row["split"]) for row in whole):
        own = [row for row in whole if (row["data"], row["split"]) == (data, split)]
        repeats = ", ".join(map(str, sorted({row["repeats"] for row in own})))
        links = f"[{data}]({data}.md) | [json]({data}.json)"
        lines.append(f"| {links} | {split} | {len(own)} | {repeats} |")
    lines += ["", *least_errors(whole)]
    absent = dict.fromkeys(row["absent"] for row in rows if row["absent"])
    lines += [f"Not here: {' · '.join(absent)}", ""] if absent else []
    return "\n".join([*lines, *_provenance(whole)])


def least_errors(rows: Sequence[Row]) -> list[str]:
    """The least error of a proved promise for each unit, trust and price, by data set."""
    proved = [
        row for row in rows if _status(row) == "proved" and row["split"] == "ratings" and _rmse(row)
    ]
    epsilons = sorted({row["epsilon"] for row in proved})
    lines = [
        "## The least error of a proved promise",
        "",
        "RMSE on a tenth of the ratings, and whose it is. A promise for a rating's value or"
        " presence hides one rating, and one for a user all of them: these are not the same ε.",
        "",
        "| data | what is hidden | from whom | "
        + " | ".join(f"ε = {e:g}" for e in epsilons)
        + " |",
        "|---" * (3 + len(epsilons)) + "|",
    ]
    for data, unit, trust in dict.fromkeys((row["data"], *unit_and_trust(row)) for row in proved):
        cells = []
        for epsilon in epsilons:
            own = [
                (_rmse(row) or 0.0, row["contender"])
                for row in proved
                if (row["data"], *unit_and_trust(row), row["epsilon"])
                == (data, unit, trust, epsilon)
            ]
            cells.append("{:.3f} {}".format(*min(own)) if own else "")
        lines.append(f"| {data} | {unit} | {_hidden_from(trust)} | " + " | ".join(cells) + " |")
    return [*lines, ""] if proved else []


def _hidden_from(trust: str) -> str:
    return {
        "curator": "whoever sees the release",
        "untrusted server": "the server too",
        "local": "everybody",
    }.get(trust, trust)


def _page(data: str, rows: Sequence[Row], drawn: Iterable[str]) -> str:
    lines = [
        f"# {data}",
        "",
        "[The protocol](protocol.md) says what each number is. ± is half of an interval of"
        " confidence 0.95 over repeats, which differ in split and noise. For the curator: every"
        " fit has a seed, and no number here is priced.",
        "",
    ]
    for name in drawn:
        lines += [f"![{name}]({name}.svg)", ""]
    for split in (split for split in SPLITS if any(row["split"] == split for row in rows)):
        own = [row for row in rows if row["split"] == split]
        lines += [f"## Split: {split}", "", f"{SPLITS[split].capitalize()}.", ""]
        priced = list(filter(has_finite_price, own))
        for unit, trust in dict.fromkeys(map(unit_and_trust, priced)):
            lines += [f"### Hidden: one {unit}; from {_hidden_from(trust)}", ""]
            lines += _table([row for row in priced if unit_and_trust(row) == (unit, trust)])
        others = [row for row in own if not has_finite_price(row)]
        if others:
            lines += ["### Without privacy", "", *_table(others)]
        if front := pictures.front(own):
            lines += _front(front)
    return "\n".join([*lines, *_provenance(rows)])


def _table(rows: Sequence[Row]) -> list[str]:
    heads = [
        *("mechanism", "ε", "status", "audits: violated of all", *(head for head, _ in COLUMNS)),
        *("RMSE of the least and most active", "fit, s", "MiB", f"ε of {TYPICAL} ratings"),
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: (row["epsilon"] or 0.0, _rmse(row) or float("inf"))):
        promise, audits, groups = row["promise"] or {}, row["audits"], row["rmse_by_activity"]
        cells = [
            row["contender"],
            printed_price(promise.get("epsilon")),
            _status(row) + (", diverged" if row["diverged"] else ""),
            "" if audits is None else f"{audits['violated']} of {sum(audits.values())}",
            *(printed_mean(row["numbers"][name]) for _, name in COLUMNS),
            "" if not groups else f"{printed_error(groups[0])}, {printed_error(groups[-1])}",
            "" if row["seconds"] is None else f"{row['seconds']:.1f}",
            "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}",
            printed_price(promise.get("epsilon_of_a_user")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def in_short(row: Row) -> list[str]:
    """mechanism, unit, status, ε, RMSE, NDCG and seconds of a row, as text."""
    return [
        row["contender"],
        (row["promise"] or {"unit": ""})["unit"],
        _status(row) + (", diverged" if row["diverged"] else ""),
        "" if row["epsilon"] is None else f"{row['epsilon']:g}",
        printed_mean(row["numbers"]["rmse"]),
        printed_mean(row["numbers"]["ndcg_at_10"]),
        f"{row['seconds']:.1f}",
    ]


def _front(front: Sequence[Row]) -> list[str]:
    lines = [
        "### Nothing else is better in both error and price of a user",
        "",
        f"Of proved promises. The price of a user is that of {TYPICAL} ratings where one rating is"
        " hidden.",
        "",
        "| ε of a user | RMSE | mechanism | ε asked |",
        "|---|---|---|---|",
    ]
    return [
        *lines,
        *(
            f"| {printed_price(row['promise']['epsilon_of_a_user'])} |"
            f" {printed_mean(row['numbers']['rmse'])} | {row['contender']} | {row['epsilon']:g} |"
            for row in front
        ),
        "",
    ]


def _provenance(rows: Sequence[Row]) -> list[str]:
    commits = sorted({short_commit(one) for row in rows for one in row["commits"]})
    devices = sorted({one for row in rows for one in row["devices"]})
    return [f"Commits: {', '.join(commits)}. Devices: {', '.join(devices)}.", ""]


def short_commit(name: str) -> str:
    return name[:12] + ("-dirty" if name.endswith("-dirty") else "")


def unit_and_trust(row: Row) -> tuple[str, str]:
    return row["promise"]["unit"], row["promise"]["trust"]


def has_finite_price(row: Row) -> bool:
    promise = row["promise"]
    return (
        promise is not None
        and promise["epsilon"] is not None
        and math.isfinite(float(promise["epsilon"]))
    )


def _rmse(row: Row) -> float | None:
    return None if row["numbers"]["rmse"] is None else row["numbers"]["rmse"]["mean"]


def _status(row: Row) -> str:
    return "no privacy" if row["promise"] is None else row["promise"]["status"]


def printed_mean(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return ""
    half = "" if value["half"] is None else f" ± {value['half']:.3f}"
    return f"{value['mean']:.3f}{half}"


def printed_error(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def printed_price(value: Any) -> str:
    """A price, rounded up to four digits; "inf" where there is no such number."""
    if value is None:
        return ""
    return printed_up(value, 4) if isinstance(value, float | int) else str(value)
