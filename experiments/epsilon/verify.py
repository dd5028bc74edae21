"""`dpmf epsilon verify`: the closed form and the exact price against every other way."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accounting import epsilon_table, verification
from accounting.verification import Row, Verification, Violation
from dpmf_jax.errors import OutsideTolerance, UsageError, usage_errors
from experiments.cli import console

STEM = "epsilon-verify"
ENOUGH = 10_000  # settings, below which a run is a look and no verification
LISTED = 50  # violations on the page; all of them are in the json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Verify the closed form of paper 001 on 10,000 settings, and write a report.

    The exit code is 6 where anything disagrees.

    It is held against a numerical minimum over real orders, dp-accounting's own Rényi divergences,
    its privacy loss distribution, the Gaussian trade-off in 40 digits, and the forty settings whose
    prices are written down. A minute or two; no data, no training.
    """

    num_settings: int = ENOUGH
    """The forty and a seeded grid; fewer than 10,000 is a look, not the verification."""
    seed: int = 1
    """Of the grid."""
    out: Path = Path(STEM)
    """Folder of the report: markdown, json, csv and, where matplotlib is installed, svg."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    result = verify(command)
    console.emit(result, json=command.json, render=_render)
    if result["num_violations"]:
        first = result["violations"][0]
        names = ", ".join(check["name"] for check in result["checks"] if check["violations"])
        raise OutsideTolerance(
            f"{result['num_violations']} disagreements: {names}",
            where=f"the first: {_sentence(first)}; all of them in {result['files']['json']}",
            fix=(
                "see whether dp-accounting, SciPy or mpmath changed (dpmf doctor), then which side"
                " of it is wrong"
            ),
        )


def verify(command: Command) -> dict[str, Any]:
    """Verifies, writes the report and returns the result, whose keys are the JSON interface."""
    started = time.perf_counter()
    if not command.num_settings >= (least := len(epsilon_table.TABLE)):
        raise UsageError(
            f"--num-settings must be at least {least}, those whose prices are written down, got"
            f" {command.num_settings}",
            where="dpmf epsilon verify",
            fix=f"--num-settings {least} for a look, {ENOUGH} for the verification",
        )
    num_pld = max(0, min(400, command.num_settings - len(epsilon_table.TABLE)))
    with (
        usage_errors(fix=f"--num-settings {ENOUGH}"),
        console.progress("settings", command.num_settings) as report,
    ):
        checked = verification.verify(
            num_settings=command.num_settings, seed=command.seed, num_pld=num_pld, progress=report
        )
    result = summary(checked, seconds=round(time.perf_counter() - started, 1))
    return result | {
        "files": {name: str(path) for name, path in write(result, checked, command.out).items()}
    }


def summary(checked: Verification, *, seconds: float) -> dict[str, Any]:
    """What was found, as plain names and values; violations by check, the largest first."""
    from importlib.metadata import version

    by_check = sorted(
        checked.violations, key=lambda v: (v.check, -v.found if v.found == v.found else -math.inf)
    )
    result: dict[str, Any] = {
        "verified": not checked.violations,
        "num_settings": len(checked.rows),
        "num_table": sum(check.count for check in checked.checks if check.name == "table exact"),
        "num_pld": checked.num_pld,
        "num_outside_theorem_1": checked.num_outside_theorem,
        "num_at_floor": checked.num_at_floor,
        "num_violations": len(checked.violations),
        "seed": checked.seed,
        "seconds": seconds,
        "versions": {name: version(name) for name in ("dp-accounting", "scipy", "numpy", "mpmath")},
        "checks": [check._asdict() for check in checked.checks],
        "violations": [_violation(violation) for violation in by_check],
    }
    return result | {"summary": _verdict(result)}


def _violation(violation: Violation) -> dict[str, Any]:
    return {
        **violation.setting._asdict(),
        **{k: v for k, v in violation._asdict().items() if k != "setting"},
    }


def _verdict(result: Mapping[str, Any]) -> str:
    worst = {check["name"]: check["worst"] for check in result["checks"]}
    verdict = "verified" if result["verified"] else "NOT VERIFIED"
    return (
        f"{verdict}: {result['num_settings']} settings ({result['num_pld']} with PLD),"
        f" {result['num_violations']} violations, {result['seconds']:g} s; worst: minimum"
        f" {worst['minimum']:.1e}, mironov {worst['mironov']:.1e}, oracle {worst['oracle']:.1e}"
    )


def _sentence(violation: Mapping[str, Any]) -> str:
    return (
        f"{violation['check']}: {violation['left']!r} against {violation['right']!r} at"
        f" epsilon_step {violation['epsilon_step']!r}, delta_step {violation['delta_step']!r},"
        f" steps {violation['num_steps']}, delta {violation['delta']!r} ({violation['found']:.3g},"
        f" allowed {violation['allowed']:.3g})"
    )


# --------------------------------------------------------------------------------------------------


def write(result: Mapping[str, Any], checked: Verification, out: Path) -> dict[str, Path]:
    """Writes the report's files in `out`, each whole or not at all; their paths by suffix."""
    from dpmf_jax.models import storage

    out.mkdir(parents=True, exist_ok=True)
    paths = {suffix: out / f"{STEM}.{suffix}" for suffix in ("csv", "json", "svg", "md")}
    storage.write_bytes(paths["csv"], table(checked.rows).encode())
    storage.write_json(paths["json"], console.plain(result))
    try:
        storage.write_bytes(paths["svg"], plot(checked.rows).encode())
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "matplotlib":
            raise
        console.say(
            "matplotlib is not installed, so there is no svg: pip install 'dpmf-jax[report]'"
        )
        paths.pop("svg").unlink(missing_ok=True)  # an older run's would be taken for this one's
    storage.write_bytes(paths["md"], page(result, plotted="svg" in paths).encode())
    return paths


def table(rows: tuple[Row, ...]) -> str:
    """The rows as csv, one setting a line, every digit; columns are the fields of `Row`."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    for index, row in enumerate(rows):
        cells = {
            **row.setting._asdict(),
            **{k: v for k, v in row._asdict().items() if k != "setting"},
        }
        cells |= {"theorem_1_applies": int(row.theorem_1_applies), "failed": "; ".join(row.failed)}
        if index == 0:
            writer.writerow(cells)
        writer.writerow("" if value is None else value for value in cells.values())
    return lines.getvalue()


def page(result: Mapping[str, Any], *, plotted: bool) -> str:
    """The report as markdown: the verdict, every check, what is marked, and the violations."""
    lines = [
        (
            "# The closed form ε = ρ + 2√(ρ ln(1/δ)) of paper 001, verified"
            if result["verified"]
            else "# The closed form ε = ρ + 2√(ρ ln(1/δ)) of paper 001: NOT verified"
        ),
        "",
        f"{result['summary']}.",
        "",
        (
            f"{result['num_settings']} settings: the {result['num_table']} whose prices are written"
            f" down, and a log-uniform grid (seed {result['seed']}) over ε_i in [1e-3, 10], δ in"
            " [1e-8, 0.1], J in [1, 1e5], δ_r in [1e-12, 1e-2] with ρ = J ε_i²/(4 ln(1.25/δ)) in"
            " [1e-6, 1e3]; up to ρ = 10 for those with PLD, several δ_r from one PLD."
        ),
        "",
        (
            f"In {result['num_outside_theorem_1']} of them ε_i >= 1, where Theorem 1 of the paper"
            " says nothing of a single step; the formula is one of ρ and holds all the same. They"
            " are marked in the plot and in the csv (theorem_1_applies = 0)."
        ),
        "",
    ]
    if result["num_settings"] < ENOUGH:
        lines += [f"**A look only: the verification takes {ENOUGH:,} settings.**", ""]
    if plotted:
        lines += [f"![closed form over exact ε against ρ]({STEM}.svg)", ""]
    lines += [
        "| name | check | settings | largest found | allowed | violations |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {check['name']} | {check['statement']} | {check['count']} | {check['worst']:.3g} |"
        f" {check['allowed']:.3g} | {check['violations']} |"
        for check in result["checks"]
    ]
    lines += [
        "",
        (
            "Found is left minus right where a check is an inequality, so that a negative number"
            " is room to spare. The oracle's difference is relative to ε, but to 0.1·√ρ in the"
            f" {result['num_at_floor']} settings whose ε is below that: as ε falls to 0 at the"
            " total variation, a relative error loses its meaning. An ε of 0 is right where δ_r is"
            " at least the total variation."
        ),
        "",
    ]
    if result["violations"]:
        lines += [f"## Violations ({result['num_violations']})", ""]
        lines += [f"- {_sentence(violation)}" for violation in result["violations"][:LISTED]]
        if result["num_violations"] > LISTED:
            lines += [f"- and {result['num_violations'] - LISTED} more, in {STEM}.json"]
        lines += [""]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return "\n".join([*lines, f"{versions}. Repeat: `{_command_line(result)}`", ""])


def _command_line(result: Mapping[str, Any]) -> str:
    return f"dpmf epsilon verify --num-settings {result['num_settings']} --seed {result['seed']}"


def plot(rows: tuple[Row, ...]) -> str:
    """Closed form over exact against ρ, as svg, with settings of ε_i >= 1 marked.

    The same rows give the same text.

    Raises: ModuleNotFoundError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    shown = [
        row for row in rows if row.exact > 0.1 * math.sqrt(row.rho)
    ]  # towards ε = 0 the ratio has no bound
    with matplotlib.rc_context({"svg.hashsalt": STEM, "svg.fonttype": "none", "font.size": 9}):
        canvas = Canvas(figsize=(8, 5), layout="constrained")
        axes = canvas.add_subplot()
        points = None
        for applies, marker, label in (
            (True, ".", "ε_i < 1"),
            (False, "+", "ε_i >= 1: outside Theorem 1"),
        ):
            part = [row for row in shown if row.theorem_1_applies == applies]
            points = axes.scatter(
                [row.rho for row in part],
                [row.closed_form / row.exact - 1 for row in part],
                c=[math.log10(row.setting.delta) for row in part],
                vmin=-12,
                vmax=-2,
                s=14,
                marker=marker,
                linewidths=0.7,
                label=label,
                rasterized=len(rows) > 2000,  # thousands of marks are megabytes of svg
            )
        axes.set(xscale="log", yscale="log", xlabel="ρ", ylabel="closed form / exact ε, minus 1")
        axes.set_title("What the closed form gives away")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        canvas.colorbar(points, label="log10 δ_r")
        drawn = io.StringIO()
        canvas.savefig(drawn, format="svg", metadata={"Date": None}, dpi=150)
    return drawn.getvalue()


def _render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table

    rows = Table(
        title=(
            f"{result['num_settings']} settings, {result['num_outside_theorem_1']} of them with ε_i"
            " >= 1"
        )
    )
    for heading in ("name", "check", "settings", "largest found", "allowed", "violations"):
        rows.add_column(heading, justify="left" if heading in ("name", "check") else "right")
    for check in result["checks"]:
        numbers = (
            str(check["count"]),
            f"{check['worst']:.3g}",
            f"{check['allowed']:.3g}",
            str(check["violations"]),
        )
        rows.add_row(check["name"], check["statement"], *numbers)
    lines = [result["summary"], *(f"wrote {path}" for path in result["files"].values())]
    return Group(rows, "\n".join(lines))
