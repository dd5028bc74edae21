"""What `dpmf audit` prints on a terminal: findings of one mechanism, verdicts of all, a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.audit.phrases import in_a_sentence, number

COLOUR = {
    "consistent": "green",
    "violated": "bold red",
    "inconclusive": "yellow",
    "not applicable": "dim",
}


def render(result: Mapping[str, Any]) -> Any:
    """The findings of one mechanism, or the verdicts of several."""
    from rich.console import Group
    from rich.text import Text

    table, lines = _all(result) if len(result["trials"]) > 1 else _one(result)
    lines += [
        "",
        "consistent: this audit failed to break the claim on these ratings; it does not prove it.",
        *(
            f"note: {note}"
            for note in dict.fromkeys(n for t in result["trials"] for n in t.get("notes", ()))
        ),
        *(f"written: {path}" for path in result["written"]),
    ]
    return Group(Text(in_a_sentence(result)), table, Text("\n".join(lines)))


def _caption(result: Mapping[str, Any]) -> str:
    return (
        "nothing in it was measured on the ratings"
        if result["public"]
        else ("measured on the ratings and not priced: for the curator")
    )


def _one(result: Mapping[str, Any]) -> tuple[Any, list[str]]:
    from rich.table import Table
    from rich.text import Text

    (trial,) = result["trials"]
    status = trial["guarantee"]["status"]
    table = Table(
        title=f"{trial['mechanism']} on {trial['data']}, {trial['steps']} steps: status {status}",
        caption=_caption(result),
    )
    table.add_column("audit", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("measured", "claimed"):
        table.add_column(heading, justify="right")
    table.add_column("claim")
    lines: list[str] = []
    apart: list[str] = []
    for finding in result["findings"]:
        name = finding["audit"]
        if finding["mechanism"] != trial["mechanism"]:
            name = f"{finding['mechanism']}: {name}"
        if finding["verdict"] == "not applicable":
            apart.append(name)
            continue
        numbers = [number(finding.get(side)) for side in ("measured", "claimed")]
        claim = Text(finding["claim"])
        if (power := finding["details"].get("power")) and finding["verdict"] == "consistent":
            claim.append(f"\npower: {power}", style="dim")
        table.add_row(Text(name), _verdict(finding), *numbers, claim)
        if finding["verdict"] == "violated" and not result["public"]:
            lines.append(_evidence(finding))
    if apart:
        lines.append(f"not applicable, {len(apart)}: {'; '.join(apart)}")
    return table, lines


def _all(result: Mapping[str, Any]) -> tuple[Any, list[str]]:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=result["title"], caption=_caption(result))
    for heading in (
        "claim",
        "ratings",
        "status",
        "verdict",
        "what broke it, or the least that would have been seen",
    ):
        table.add_column(heading, no_wrap=heading == "verdict")
    for trial in result["trials"]:
        names = (trial["label"], trial["data"], trial["guarantee"]["status"])
        table.add_row(*map(Text, names), _verdict(trial), Text(trial["evidence"]))
    caught = sum(row["caught"] for row in result["self_test"])
    return table, [f"self-test: {caught} of {len(result['self_test'])} planted bugs caught"]


def _verdict(told: Mapping[str, Any]) -> Any:
    from rich.text import Text

    return Text(told["verdict"], style=COLOUR[told["verdict"]])


def _evidence(finding: Mapping[str, Any]) -> str:
    replay = finding["details"].get("replay", {})
    pair = ", ".join(f"{name} {value}" for name, value in replay.get("pair", {}).items())
    at = "".join(
        f", {name.replace('_', ' ')} {replay[name]}"
        for name in ("step", "first_step", "leaf")
        if name in replay
    )
    times = finding["details"].get("ratio")  # a number, or "inf" as JSON has it
    ratio = "" if times is None else f", {float(times):.4f} times the claim"
    return f"violated: {finding['audit']}: {pair}{at}{ratio}; key {replay.get('key')}"


def render_replay(result: Mapping[str, Any]) -> Any:
    """What a replay found, one finding a row."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(result['replayed'])} findings run again")
    for heading in ("#", "finding", "verdict", "again", "measured", "again", "same bits"):
        table.add_column(heading)
    for row in result["replayed"]:
        table.add_row(
            str(row["number"]),
            Text(f"{row['mechanism']}: {row['audit']}"),
            row["verdict"],
            str(row["verdict_now"]),
            number(row["measured"]),
            number(row["measured_now"]),
            "yes" if row["same_bits"] else "no",
        )
    return table
