"""What `dpmf budget` says: totals, releases and overlaps as plain values, and as text."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Mapping
from typing import Any

from accounting import Guarantee
from accounting.digits import printed, printed_delta, printed_whole
from accounting.ledger import Budget, Entry, Overlap


def budget_values(budget: Budget) -> dict[str, Any]:
    """A population's totals and releases, as in --json."""
    return {
        "names": budget.names,
        "data_hashes": sorted({entry.data_hash for entry in budget.entries if entry.data_hash}),
        **_totals(budget),
        "entries": [entry_values(entry) for entry in budget.entries],
    }


def overlap_values(overlap: Overlap) -> dict[str, Any]:
    """Populations that probably hold the same people, and their totals, as in --json."""
    return {
        "names": overlap.names,
        "pairs": [pair._asdict() for pair in overlap.pairs],
        **_totals(overlap.together),
    }


def _totals(budget: Budget) -> dict[str, Any]:
    return {
        "releases": len(budget.entries),
        "epsilon": budget.epsilon,
        "totals": [
            {
                "unit": total.unit,
                "relation": str(total.relation),
                "relation_kind": total.relation.kind,
                "epsilon": total.epsilon,
                "delta": total.delta,
                "status": total.status,
                "leaves_open": total.leaves_open,
                "accountants": total.accountants,
                "releases": sum(_is_of(entry.guarantee, total) for entry in budget.entries),
                "steps": total.steps,
            }
            for total in budget.totals
        ],
    }


def _is_of(guarantee: Guarantee, total: Guarantee) -> bool:
    return total.status == "none" or (guarantee.unit, guarantee.relation.kin) == (
        total.unit,
        total.relation.kin,
    )


def entry_values(entry: Entry) -> dict[str, Any]:
    """A release in the ledger, as in --json."""
    guarantee = entry.guarantee
    return {
        "id": entry.id,
        "time": entry.time,
        "population": entry.population,
        "data_set": entry.data_set,
        "data_hash": entry.data_hash,
        "model": entry.model,
        "mechanism": guarantee.mechanism,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "unit": guarantee.unit,
        "relation": str(guarantee.relation),
        "status": guarantee.status,
        "headline": guarantee.headline,
    }


def excess(names: str, budget: Budget, limit: float) -> str:
    """Why the totals of a budget are not within a limit, as a sentence."""
    if len(budget.totals) > 1:
        return (
            f"{names}: the releases protect different things, so no total is known to be within"
            f" {printed_whole(limit)}"
        )
    if budget.epsilon == math.inf:
        return f"{names}: no finite epsilon holds, the limit is {printed_whole(limit)}"
    return (
        f"{names}: the total epsilon is {printed(budget.epsilon)}, the limit is"
        f" {printed_whole(limit)}"
    )


def render_show(result: Mapping[str, Any]) -> str:
    """A paragraph a population: its totals, then its releases, oldest first; then those with the
    same people.
    """
    if not result["data_sets"]:
        return f"no release is in the ledger {result['ledger']}\nenter one: dpmf budget add MODEL"
    lines = []
    for data_set in result["data_sets"]:
        count = data_set["releases"]
        lines.append(f"{' = '.join(data_set['names'])}: {count} release{'s' if count != 1 else ''}")
        lines += [line for total in data_set["totals"] for line in _total_lines(total)]
        if len(data_set["totals"]) > 1:
            lines.append(
                "  these protect different things: no number covers all the releases together"
            )
        for entry in data_set["entries"]:
            known = f" {entry['data_hash'][:12]}" if entry["data_hash"] else ""
            data = f"data {entry['data_set']}{known}"
            text = (
                f"{entry['time']}  {entry['mechanism']}: {entry['headline']}; {data};"
                f" {entry['model']}"
            )
            lines += _wrapped(text, "    ", " " * 8)
        lines.append("")
    lines += [line for overlap in result["overlaps"] for line in (*_overlap_lines(overlap), "")]
    covers = [line for sentence in result["covers"] for line in _wrapped(sentence, "- ", "  ")]
    return "\n".join([*lines, *covers, f"for the curator; the ledger is {result['ledger']}"])


def _overlap_lines(overlap: Mapping[str, Any]) -> list[str]:
    names = " and ".join(overlap["names"])
    met = []
    for pair in overlap["pairs"]:
        first, second = pair["names"]
        where = "" if len(overlap["pairs"]) == 1 else f" of {first} and {second}"
        if pair["shared"] is None:
            met.append(f"data sets{where} have one name, and not all their user ids are known")
        else:
            here, there = pair["users"]
            met.append(
                f"about {pair['shared']:,} user ids{where} are in both, of {here:,} and {there:,}"
            )
    return [
        *_wrapped(f"the same people are probably in {names}: {'; '.join(met)}", "", "  "),
        f"  for a person in all of these, {overlap['releases']} releases add up",
        *(line for total in overlap["totals"] for line in _total_lines(total)),
        *(
            ["  these protect different things: no number covers all the releases together"][
                : len(overlap["totals"]) - 1
            ]
        ),
        "  one name for them from now on: dpmf fit --population NAME",
        "  equal ids are taken for one person; where they are different people: --different-people",
    ]


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        110,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _total_lines(total: Mapping[str, Any]) -> list[str]:
    count = f"{total['releases']} release{'s' if total['releases'] != 1 else ''}"
    if total["status"] == "none":
        return [f"  total: NO GUARANTEE, {count}: one without a guarantee leaves none"]
    epsilon = (
        "NO FINITE EPSILON"
        if total["epsilon"] == math.inf
        else f"ε = {printed(total['epsilon'])} (rounded up)"
    )
    claim = {"proved": "", "claimed": ", claimed and NOT proved"}.get(
        total["status"], f", {total['status']}"
    )
    first = (
        f"  total: {epsilon} at δ = {printed_delta(total['delta'])}, unit: one {total['unit']},"
        f" {count}{claim}"
    )
    return [first, f"         {total['relation']}"]


def render_add(result: Mapping[str, Any]) -> str:
    entry = result["entry"]
    return (
        f"{entry['population']}: {entry['headline']}\nentered in {result['ledger']}; "
        f"all of it: dpmf budget show {shlex.quote(entry['population'])}"
    )
