"""The document of an audit as sections of plain blocks, in the order of the report."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.audit.blocks import (
    Badge,
    Card,
    Code,
    Folded,
    Items,
    Link,
    Picture,
    Section,
    Table,
    Text,
    Verdict,
)
from experiments.audit.phrases import in_a_sentence, number, prefix

# Title: the families (names before the colon) that stand there; others get sections of their own.
GROUPS = {
    "Sensitivity": ("sensitivity", "user price"),
    "Privacy loss": ("privacy loss", "density", "enumeration"),
    "Membership inference": ("membership", "one run"),
    "KL divergence": ("KL", "divergence"),
    "Noise and coins": ("noise", "coins"),
    "Post-processing and release": ("init", "post-processing", "release", "released", "fit"),
}
MEANS = {
    "violated": "the claim is false",
    "consistent": "the audit failed to break the claim on these ratings; that does not prove it",
    "inconclusive": "the audit ran and may not say",
    "not applicable": "there is no such claim",
}


def sections(told: Mapping[str, Any], out: str | None) -> list[Section]:
    """All sections of a document, public or not.

    out: the folder that the section on replays names.
    """
    trials, several = told["trials"], len(told["trials"]) > 1
    found = [Section("In a sentence", 2, "in-a-sentence", [Text(in_a_sentence(told))])]
    found += [_all(told)] if several else []
    for place, trial in enumerate(trials):
        first, last = trial["findings"]
        findings = told["findings"][first - 1 : last]
        level, anchor = (3, f"trial-{place + 1}-") if several else (2, "")
        if several:
            blocks: list[Any] = [
                Text(f"{trial['mechanism']} on {trial['data']}, {_steps(trial['steps'])}.")
            ]
            blocks += [Text(f"Settings: {trial['why']}.")] if trial.get("why") else []
            found.append(Section(trial["label"], 2, f"trial-{place + 1}", blocks))
        parts = [*_claim(trial), *_evidence(trial, findings, told["public"]), *_utility(trial)]
        found += [Section(title, level, anchor + _slug(title), blocks) for title, blocks in parts]
    ending = [
        ("Self-test of the audits", _self_test(told)),
        ("Where this comes from", _provenance(told)),
    ]
    ending.append(("How to replay", _replay(told, out)))
    return found + [Section(title, 2, _slug(title), blocks) for title, blocks in ending if blocks]


def _all(told: Mapping[str, Any]) -> Section:
    rows = [
        (
            Link(trial["label"], f"trial-{place + 1}"),
            trial["data"],
            trial["guarantee"]["status"],
            _price(trial["guarantee"]),
            Verdict(trial["verdict"]),
            trial["evidence"],
        )
        for place, trial in enumerate(told["trials"])
    ]
    head = (
        "claim",
        "ratings",
        "status",
        "price",
        "verdict",
        "what broke it, or the least that would have been seen",
    )
    return Section("Verdicts", 2, "verdicts", [Table(head, rows), _legend(told)])


def _legend(told: Mapping[str, Any]) -> Items:
    rate = told["false_alarms"]
    alarms = (
        f"false alarms: at most {rate['of_a_finding']:g} for a finding that rests on chance, of"
        f" which there are {rate['findings_that_rest_on_chance']}: {rate['of_all']:.2g} for all"
        " together; the others are exact"
    )
    return Items([*(f"{verdict}: {meaning}" for verdict, meaning in MEANS.items()), alarms])


def _price(guarantee: Mapping[str, Any]) -> str:
    if guarantee["status"] == "none":
        return "none"
    return (
        f"ε = {number(guarantee['epsilon'])}, δ = {guarantee['delta']:g}, one {guarantee['unit']}"
    )


def _claim(trial: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    from accounting import status

    guarantee = trial["guarantee"]
    claimed = guarantee["status"] != "none"
    facts = [
        ("status", status.meaning(guarantee["status"], guarantee.get("claimed_by"))),
        *([("leaves open", guarantee["leaves_open"])] if guarantee.get("leaves_open") else []),
        ("unit", f"one {guarantee['unit']}" if claimed else "-"),
        ("neighbours", guarantee["relation"]),
        ("released", ", ".join(guarantee["released"])),
        *([("a user pays", guarantee["user_price"])] if guarantee["user_price"] else []),
        *((("assumed", one)) for one in guarantee["assumptions"]),
        *((("not covered", one)) for one in guarantee["not_covered"]),
    ]
    parts: list[tuple[str, list[Any]]] = [
        ("The claim", [Text(_sentence(guarantee["headline"])), Table(("", ""), facts)]),
        (
            "The verdict",
            [Badge(trial["verdict"], trial["evidence"]), Text(_sentence(MEANS[trial["verdict"]]))],
        ),
        ("Who sees what", [Table(("who", "what"), _trust(guarantee))]),
    ]
    if claimed:
        parts.append(
            (f"Price at δ = {guarantee['delta']:g}, by every accountant", [_accountants(guarantee)])
        )
    if claimed and guarantee["rho"] is not None and guarantee["delta"] > 0:
        parts.append(("Closed form", _closed_form(guarantee)))
    return parts


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _trust(guarantee: Mapping[str, Any]) -> list[tuple[str, str]]:
    party, colon, sees = guarantee["trust_model"].partition(": ")
    rows = [(party, sees) if colon else ("trust model", party)]
    rows.append(("whoever gets the release", ", ".join(guarantee["released"])))
    return rows + [(name, holds) for name, holds in guarantee["against"]]


def _accountants(guarantee: Mapping[str, Any]) -> Table:
    from accounting.digits import printed
    from accounting.statement import KINDS

    rows = [
        (name, printed(float(value)), KINDS.get(name, ""))
        for name, value in guarantee["accountants"].items()
    ]
    stated = printed(float(guarantee["epsilon"]))
    return Table(
        ("accountant", "ε", "what it is"), [*rows, ("stated", stated, "what the claim is held to")]
    )


def _closed_form(guarantee: Mapping[str, Any]) -> list[Any]:
    from accounting import gaussian
    from accounting.digits import printed

    rho, delta = guarantee["rho"], guarantee["delta"]
    z = guarantee["noise_multiplier"]
    made = f" = {guarantee['steps']} / (2 · {number(z)}²)" if z is not None else ""
    epsilon = gaussian.epsilon_closed_form(rho, delta)
    order = 1 + math.sqrt(math.log(1 / delta) / rho)
    return [
        Text(
            "Equation (9) of paper 001, from the optimal Rényi order (10), with ρ the whole price"
            " of Gaussian steps:"
        ),
        Code(
            f"ρ = J / (2 z²){made} = {number(rho)}\nε = ρ + 2 √(ρ ln(1/δ)) = {printed(epsilon)}\n"
            f"α = 1 + √(ln(1/δ) / ρ) = {number(order)}"
        ),
    ]


def _evidence(
    trial: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], public: bool
) -> list[tuple[str, list[Any]]]:
    parts: dict[str, list[Any]] = {title: [] for title in GROUPS}
    apart: dict[str, list[Card]] = {}
    for one in findings:
        family = prefix(one)
        title = next(
            (title for title, names in GROUPS.items() if family in names), family or "Other"
        )
        card, blocks = _card(one, trial["mechanism"], public), parts.setdefault(title, [])
        if one["verdict"] == "not applicable":
            apart.setdefault(title, []).append(card)
        else:
            blocks += [card, *_attacks(one, trial["guarantee"])]
    bounds = [
        [one["measured"], float(one["audit"].rpartition("= ")[2])]
        for one in findings
        if one["audit"].startswith("privacy loss: δ = ")
        and isinstance(one.get("measured"), int | float)
    ]
    if trial["curve"] and parts["Privacy loss"]:
        parts["Privacy loss"].insert(0, _curve(trial, bounds, public))
    for title, cards in apart.items():
        parts[title].append(Folded("not applicable", cards))
    return [(title, blocks) for title, blocks in parts.items() if blocks]


def _card(one: Mapping[str, Any], mechanism: str, public: bool) -> Card:
    numbers = [] if public or one["measured"] is None else [("measured", number(one["measured"]))]
    numbers += [] if one["claimed"] is None else [("claimed", number(one["claimed"]))]
    if not public and (one["lower"], one["upper"]) != (None, None):
        low, high = (
            number(one[side]) if one[side] is not None else mark
            for side, mark in (("lower", "-∞"), ("upper", "∞"))
        )
        sure = "exact" if one["confidence"] == 1 else f"confidence {one['confidence']:g}"
        numbers.append(("interval", f"[{low}, {high}], {sure}"))
    if one["verdict"] == "not applicable":
        numbers = []
    details, remarks = one["details"], []
    if one["verdict"] == "consistent" and "power" in details:
        remarks.append(f"Power: {details['power']}.")
    if "why" in details:
        remarks.append(f"Why: {details['why']}.")
    if one["verdict"] == "violated":
        remarks.append(f"{_where(details)}To run it again: --replay with #{one['number']}.")
    name = one["audit"] if one["mechanism"] == mechanism else f"{one['mechanism']}: {one['audit']}"
    return Card(name, one["verdict"], one["claim"], numbers, remarks)


def _where(details: Mapping[str, Any]) -> str:
    replay = details.get("replay") or {}
    told = [
        f"{name.replace('_', ' ')} {replay[name]}"
        for name in ("step", "first_step", "leaf")
        if name in replay
    ]
    return f"Seen at {', '.join(told)}. " if told else ""


def _curve(trial: Mapping[str, Any], bounds: Sequence[Sequence[float]], public: bool) -> Picture:
    series = {"claimed": trial["curve"]}
    if bounds and not public:
        series["measured"] = bounds
    reach = ", ".join(
        f"ε = {number(epsilon)} at δ = {delta:.2g}" for epsilon, delta in trial["curve"][::4]
    )
    seen = ", ".join(
        f"at least {number(epsilon)} at δ = {delta:g}"
        for epsilon, delta in series.get("measured", ())
    )
    alt = f"The claim as a curve δ(ε): {reach}." + (f" Measured: {seen}." if seen else "")
    return Picture("curve", "Claimed curve δ(ε), and measured lower bounds on ε", alt, series)


def _attacks(one: Mapping[str, Any], guarantee: Mapping[str, Any]) -> list[Any]:
    """A table of attacks, on the mechanism and on the same without noise, and their ROC."""
    rows = one["details"].get("attacks", ())
    curves = {f"{row['mechanism']}: {row['attack']}": row["curve"] for row in rows}
    if (roc := one["details"].get("roc")) is not None:
        curves["private"] = [list(point) for point in zip(roc["fpr"], roc["tpr"], strict=True)]
    if not curves:
        return []
    finite = guarantee["status"] != "none" and isinstance(guarantee["epsilon"], int | float)
    claim = (
        (float(guarantee["epsilon"]), float(guarantee["delta"]))
        if finite and one["claimed"] is not None
        else None
    )
    own = [
        point
        for name, points in curves.items()
        if not name.startswith("control")
        for point in points
    ]
    best = max(own, key=lambda point: point[1] - point[0], default=(0.0, 0.0))
    alt = (
        f"Share of members found against false alarms; best: {number(best[1])} at"
        f" {number(best[0])}."
    )
    drawn = Picture("roc", f"ROC of {one['audit']}, log axes", alt, curves, claim)
    names = ("attack", "mechanism", "auc", "advantage", "advantage_bound")
    cells = [
        [row[name] if name in names[:2] else number(row.get(name)) for name in names]
        for row in rows
    ]
    return [Table([name.replace("_", " ") for name in names], cells), drawn] if rows else [drawn]


def _utility(trial: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    told = trial.get("utility")
    if not told:
        return []
    rows = [
        (
            "this mechanism, one run",
            number(told["rmse"]) if told["rmse"] is not None else f"none: {told['why']}",
        )
    ]
    rows += [
        (name.replace("_", " "), number(values["rmse_train"]))
        for name, values in told["controls"].items()
    ]
    note = "RMSE on the training ratings; the controls are not private. Unpriced, for the curator."
    return [("Utility beside its controls", [Table(("", "RMSE"), rows), Text(note)])]


def _self_test(told: Mapping[str, Any]) -> list[Any]:
    if not told["self_test"]:
        return []
    rows = [
        (row["bug"], row["audit"], Verdict("caught" if row["caught"] else "missed"), row["sound"])
        for row in told["self_test"]
    ]
    return [
        Text(
            "Bugs planted now, in a sound mechanism on generated ratings; the last column is the"
            " same audit without."
        ),
        Table(("planted bug", "audit", "bug", "sound mechanism"), rows),
    ]


def _provenance(told: Mapping[str, Any]) -> list[Any]:
    where, sizes = told["provenance"], told["sizes"]
    rows = [
        ("versions", ", ".join(f"{name} {value}" for name, value in where["versions"].items())),
        ("commit", where["commit"]),
        ("device", where["device"]),
        ("seed of the audit", str(told["seed"])),
        (
            "sizes",
            ", ".join(
                f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in sizes.items()
            ),
        ),
    ]
    blocks: list[Any] = [Table(("", ""), rows)]
    notes = dict.fromkeys(note for trial in told["trials"] for note in trial.get("notes", ()))
    if notes:
        blocks.append(Items([f"ratings: {note}" for note in notes]))
    return blocks


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = [
            f"{name}: {', '.join(f'{what} {num}' for what, num in cut.items())}"
            for name, cut in value.items()
        ]
        return "; ".join(inner) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "by default" if value is None else str(value)


def _replay(told: Mapping[str, Any], out: str | None) -> list[Any]:
    if told["public"]:
        return [
            Text(
                "This is the public report: it names no records, so it cannot be replayed. The"
                " curator's can."
            )
        ]
    file = shlex.quote(f"{out}/findings.json" if out else "findings.json")
    return [
        Text(
            "The first runs every violated finding again, the second any one by its number, on the"
            " same ratings:"
        ),
        Code(f"dpmf audit --replay {file}\ndpmf audit --replay {file}#1"),
        Text("Exact audits give the same number to the last bit on the same machine and versions."),
    ]


def _steps(num: int) -> str:
    return f"{num} step{'s' * (num != 1)}"


def _slug(title: str) -> str:
    return "-".join(
        "".join(c if c.isalnum() and c.isascii() else " " for c in title.lower()).split()
    )
