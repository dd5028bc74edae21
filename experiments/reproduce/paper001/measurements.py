"""Measurements behind the statements of paper 001's section 5: what the stored rows of its figures
say to each.

Each takes the `Evidence` and returns a `Judged`, or raises `NotTestable` where rows are missing.
The criteria are ours, since the paper gives hardly any; they are fixed here. MovieLens-1M alone,
but for the sensitivity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.reproduce.catalogue import Record
from experiments.reproduce.claims import Judged, NotTestable
from experiments.reproduce.paper001 import figures, plans
from experiments.reproduce.paper001.figures import NON_PRIVATE

Values = dict[str, dict[float, float]]  # by series, then by x

HIGH_RANK, LOW_RANK = 320.0, 20.0
NEAR_ZERO = 0.05  # in RMSE
SEVERAL = 3.0  # times
FLAT = 0.1  # relative, between the smallest and the largest ε from rank FLAT_FROM on
FLAT_FROM = 128.0
STRICT = 10.0  # overall ε; no usual reading of "strict" is as wide
CLOSE = 0.05  # of the non-private RMSE


class Evidence(NamedTuple):
    """figures: stored records, by name.
    findings: "range" and "plots" (see `audit_sensitivity`), as `Finding.to_dict`.
    """

    figures: Mapping[str, Record]
    findings: Mapping[str, Mapping[str, Any]]


def _record(evidence: Evidence, name: str) -> Record:
    record = evidence.figures.get(name)
    if record is None:
        raise NotTestable(f"run dpmf reproduce {name} first")
    if record["ratings"]["name"] != figures.FIGURES[name].paper_data:
        wanted = figures.FIGURES[name].paper_data
        raise NotTestable(f"{name} was run on {record['ratings']['name']}, not on {wanted}")
    return record


def _values(
    evidence: Evidence, name: str, axis: str, kinds: Sequence[str], field: str = "value"
) -> Values:
    values: Values = {}
    for row in _record(evidence, name)["rows"]:
        if row["axis"] == axis and row["kind"] in kinds and row[field] is not None:
            values.setdefault(row["series"], {})[float(row["x"])] = float(row[field])
    return values


def _need(values: Values, series: Sequence[str], name: str, xs: Sequence[float] = ()) -> None:
    """Raises: NotTestable where a series, or a place of one, is missing."""
    for one in series:
        if missing := [f"{x:g}" for x in xs if x not in values.get(one, {})]:
            ranks = f" --ranks {' '.join(missing)}" if figures.FIGURES[name].x_name == "n" else ""
            raise NotTestable(
                f"{one} at {', '.join(missing)} is not stored: run dpmf reproduce {name}{ranks}"
                " first"
            )
        if not values.get(one):
            raise NotTestable(f"series {one} is not stored: run dpmf reproduce {name} first")


def _private(name: str) -> list[str]:
    return [series for series in figures.FIGURES[name].series if series != NON_PRIVATE]


def each(numbers: Mapping[str, float], form: str = ".3f") -> str:
    return ", ".join(f"{number:{form}} at ε_i = {series}" for series, number in numbers.items())


def gaps_shrink(evidence: Evidence) -> Judged:
    """The gaps at the last step that all curves have; between stored steps a curve is linear."""
    rows = _values(evidence, "001/fig1", "rmse", ("marker", "line_end", "line_vertex"))
    series = _private("001/fig1")
    _need(rows, [*series, NON_PRIVATE], "001/fig1")
    end = min(max(rows[name]) for name in [*series, NON_PRIVATE])
    gaps = {name: _at(rows[name], end) - _at(rows[NON_PRIVATE], end) for name in series}
    last = max(rows[series[-1]])
    left = (rows[series[-1]][last] - _at(rows[NON_PRIVATE], last)) / _at(rows[NON_PRIVATE], last)
    holds = (
        all(one > other for one, other in itertools.pairwise(gaps.values()))
        and gaps[series[-1]] > 0
    )
    value = f"RMSE above the non-private one at step {end:g}: {each(gaps, '.4f')}"
    why = (
        f"at its own end, step {last:g}, ε_i = {series[-1]} is {left:.1%} above the non-private"
        " RMSE"
    )
    return Judged(value, holds, why, gaps | {"step": end, "left": left})


def _at(curve: Mapping[float, float], step: float) -> float:
    """Between the two stored steps around it: linear."""
    known = sorted(curve)
    after = next((x for x in known if x >= step), known[-1])
    before = max((x for x in known if x <= step), default=known[0])
    if after == before:
        return curve[after]
    return curve[before] + (curve[after] - curve[before]) * (step - before) / (after - before)


def _trade(evidence: Evidence) -> tuple[dict[str, float], dict[str, float]]:
    """RMSE and overall ε over ε_i, the paper's J, in the order of ε_i."""
    series = _private("001/fig4")
    values = []
    for axis in ("rmse", "overall_epsilon"):
        rows = _values(evidence, "001/fig4", axis, ("marker",))
        _need(rows, series, "001/fig4")
        values.append({name: next(iter(rows[name].values())) for name in series})
    return values[0], values[1]


def knee(x: Sequence[float], y: Sequence[float]) -> int:
    """The point of a falling curve furthest below its ends' chord, both axes scaled to 0…1."""
    below = [
        1 - (a - x[0]) / (x[-1] - x[0]) - (b - y[-1]) / (y[0] - y[-1])
        for a, b in zip(x, y, strict=True)
    ]
    return max(range(len(below)), key=below.__getitem__)


def knee_at_0_4(evidence: Evidence) -> Judged:
    rmse, epsilon = _trade(evidence)
    series, errors = list(rmse), list(rmse.values())
    if not errors[0] > errors[-1]:
        return Judged("the RMSE does not fall with ε_i", False, "there is no knee", {})
    plain = series[knee(list(epsilon.values()), errors)]
    log = series[knee([math.log(one) for one in epsilon.values()], errors)]
    holds = {plain, log} <= {"0.30", "0.50"}
    value = (
        f"knee at ε_i = {plain} (overall ε {epsilon[plain]:.1f}); over log ε at {log}"
        f" ({epsilon[log]:.1f})"
    )
    why = (
        "0.4 itself is plotted by neither side; 0.30 and 0.50 are the plotted settings on its two"
        " sides"
    )
    return Judged(value, holds, why, {"knee": float(plain), "knee_log": float(log)})


def little_beyond_half(evidence: Evidence) -> Judged:
    rmse, epsilon = _trade(evidence)
    first, last = next(iter(rmse)), list(rmse)[-1]
    before, after = rmse[first] - rmse["0.50"], rmse["0.50"] - rmse[last]
    times = epsilon[last] / epsilon["0.50"]
    holds = after <= before / 4 and times >= 2
    value = (
        f"RMSE falls by {before:.4f} from ε_i = {first} to 0.50 and by {after:.4f} from there to"
        f" {last}; overall ε grows from {epsilon['0.50']:.1f} to {epsilon[last]:.1f}, {times:.2f}"
        " times"
    )
    return Judged(value, holds, "", {"before": before, "after": after, "times": times})


def close_and_strict(evidence: Evidence) -> Judged:
    rmse, epsilon = _trade(evidence)
    rows = _values(evidence, "001/fig1", "rmse", ("line_end",))
    _need(rows, [NON_PRIVATE], "001/fig1")
    (open_error,) = rows[NON_PRIVATE].values()
    above = {series: error / open_error - 1 for series, error in rmse.items()}
    close = [series for series in rmse if above[series] <= CLOSE]
    strict = [series for series in rmse if epsilon[series] <= STRICT]
    parts = [
        f"ε_i = {series}: overall ε {epsilon[series]:.1f}, RMSE {above[series]:+.1%}"
        for series in rmse
    ]
    nearest = (
        f"the smallest overall ε with such an RMSE is {min(epsilon[s] for s in close):.1f}"
        if close
        else ""
    )
    why = (
        f"{nearest or 'no setting has such an RMSE'}; it is training RMSE, and the guarantee is"
        " claimed, not proved"
    )
    return Judged("; ".join(parts), bool(set(close) & set(strict)), why, above)


def _over_ranks(evidence: Evidence) -> Values:
    return _values(evidence, "001/fig7", "rmse", ("marker", "small fall"))


def falls_to_zero(evidence: Evidence) -> Judged:
    rows = _over_ranks(evidence)
    _need(rows, [NON_PRIVATE], "001/fig7", (512.0,))
    error = rows[NON_PRIVATE][512.0]
    return Judged(f"{error:.4f} at n = 512", error <= NEAR_ZERO, "", {"rmse": error})


def gap_grows(evidence: Evidence) -> Judged:
    rows, series = _over_ranks(evidence), _private("001/fig7")
    _need(rows, [*series, NON_PRIVATE], "001/fig7", (LOW_RANK,))
    most = max(
        (rank for rank in rows[NON_PRIVATE] if all(rank in rows[name] for name in series)),
        default=LOW_RANK,
    )
    if most <= LOW_RANK:
        raise NotTestable("no rank above 20 is stored: run dpmf reproduce 001/fig7 first")
    gaps = {
        name: [rows[name][rank] - rows[NON_PRIVATE][rank] for rank in (LOW_RANK, most)]
        for name in series
    }
    times = {name: gap[1] / gap[0] if gap[0] > 0 else math.nan for name, gap in gaps.items()}
    parts = [f"{gap[0]:.3f} to {gap[1]:.3f} at ε_i = {name}" for name, gap in gaps.items()]
    holds = all(gap[1] >= 2 * gap[0] and gap[1] > 0 for gap in gaps.values())
    why = "" if most == 512 else f"the largest stored rank is {most:g}; the paper's is 512"
    return Judged(
        f"from n = 20 to {most:g}, the gap grows from {', '.join(parts)}", holds, why, times
    )


def saturates(evidence: Evidence) -> Judged:
    rows, series = _over_ranks(evidence), _private("001/fig7")
    _need(rows, [*series, NON_PRIVATE], "001/fig7", (256.0, 512.0))
    falls = {name: 1 - rows[name][512.0] / rows[name][256.0] for name in (*series, NON_PRIVATE)}
    open_fall = falls.pop(NON_PRIVATE)
    holds = all(fall <= open_fall / 2 for fall in falls.values())
    value = (
        f"from n = 256 to 512 the RMSE falls by {each(falls, '.1%')}, and by {open_fall:.1%}"
        " without privacy"
    )
    why = (
        "slower than without privacy, and no plateau: every doubling still lowers the training RMSE"
        if holds
        else ""
    )
    return Judged(value, holds, why, falls | {NON_PRIVATE: open_fall})


def _epsilon_over_ranks(evidence: Evidence, source: str) -> Values:
    """source: "paper", its points; "ours", where our stopping rule ends our runs."""
    if source == "ours":
        return _values(evidence, "001/fig10", "overall_epsilon", ("patience",))
    values: Values = {}
    for point in figures.points("fig10.csv"):
        values.setdefault(point.series, {})[float(round(point.x))] = point.y
    return values


OURS = "where early stopping by patience ends our runs, a rule of ours; the paper's is not known"
POINTS = (
    "by the paper's own points; eq. (9) at their J gives the same values, so no training decides"
    " this"
)


def flat_at_large_ranks(source: str) -> Callable[[Evidence], Judged]:
    def check(evidence: Evidence) -> Judged:
        values = _epsilon_over_ranks(evidence, source)
        low = [series for series in _private("001/fig10") if float(series) <= 0.5]
        changes, all_of_it = {}, {}
        for series in low:
            high = [e for rank, e in values.get(series, {}).items() if rank >= FLAT_FROM]
            if len(high) < 2:
                ranks = " ".join(f"{rank}" for rank in plans.RANKS if rank >= FLAT_FROM)
                raise NotTestable(
                    f"fewer than two ranks from {FLAT_FROM:g} on are stored with our own J at ε_i ="
                    f" {series}: run dpmf reproduce 001/fig10 --ranks {ranks} first"
                )
            changes[series] = (max(high) - min(high)) / min(high)
            all_of_it[series] = max(values[series].values()) / min(values[series].values())
        holds = all(change <= FLAT for change in changes.values())
        value = f"largest over smallest ε from n = {FLAT_FROM:g} on: {each(changes, '+.0%')}"
        why = (
            f"{POINTS if source == 'paper' else OURS}; over all n the largest is"
            f" {each(all_of_it, '.2f')} "
        )
        return Judged(value, holds, why + "times the smallest", changes)

    return check


def peaks_between(source: str) -> Callable[[Evidence], Judged]:
    def check(evidence: Evidence) -> Judged:
        values = _epsilon_over_ranks(evidence, source)
        high = [series for series in _private("001/fig10") if float(series) > 0.5]
        parts, holds, numbers = [], True, {}
        for series in high:
            curve = dict(sorted(values.get(series, {}).items()))
            if len(curve) < 3 or max(curve) < HIGH_RANK:
                raise NotTestable(
                    f"ranks up to {HIGH_RANK:g} and beyond are not stored with our own J at ε_i ="
                    f" {series}: run dpmf reproduce 001/fig10 --scale full first"
                )
            top, last = max(curve, key=curve.__getitem__), max(curve)
            holds &= top not in (min(curve), last)
            numbers |= {f"{series} peak": top, f"{series} fall": 1 - curve[last] / curve[top]}
            fall = f"{numbers[f'{series} fall']:.0%} lower at n = {last:g}"
            parts.append(f"ε_i = {series}: ε peaks at {curve[top]:.1f}, n = {top:g}, {fall}")
        return Judged("; ".join(parts), holds, POINTS if source == "paper" else OURS, numbers)

    return check


def times_of_iterations(evidence: Evidence) -> Judged:
    rows, series = (
        _values(evidence, "001/fig16", "ms_per_iteration", ("marker",)),
        _private("001/fig16"),
    )
    _need(rows, series, "001/fig16")
    ratios = {}
    for name in series:
        low = [t for rank, t in rows[name].items() if rank <= LOW_RANK]
        high = [t for rank, t in rows[name].items() if rank >= HIGH_RANK]
        if not low or not high:
            raise NotTestable(
                "ranks 20 and below, 320 and above: run dpmf reproduce 001/fig16 --scale full first"
            )
        ratios[name] = min(high) / max(low)
    device = ", ".join(_record(evidence, "001/fig16")["devices"])
    paper: Values = {}
    for point in figures.points("fig16.csv"):
        paper.setdefault(point.series, {})[round(point.x)] = point.y
    theirs = {
        name: (
            min(t for rank, t in paper[name].items() if rank >= HIGH_RANK)
            / max(t for rank, t in paper[name].items() if rank <= LOW_RANK)
        )
        for name in series
    }
    value = f"shortest time at n >= 320 over the longest at n <= 20: {each(ratios, '.1f')}"
    why = f"on {device}; the paper's points, on a Tesla P100: {each(theirs, '.1f')}"
    return Judged(value, all(ratio >= SEVERAL for ratio in ratios.values()), why, ratios)


PATIENCE = (
    "the end is that of early stopping by patience, a rule of ours; the paper's rule is not known"
)


def over_learning_rates(
    name: str, axis: str, what: str, field: str, sign: int
) -> Callable[[Evidence], Judged]:
    """Whether a number at the largest μ is above (1) or below (-1) the smallest's, at every ε_i."""

    def check(evidence: Evidence) -> Judged:
        rows, series = _values(evidence, name, axis, ("patience",), field), _private(name)
        _need(rows, series, name, plans.LEARNING_RATES)
        ends = {one: [rows[one][rate] for rate in plans.LEARNING_RATES] for one in series}
        changes = {one: values[-1] - values[0] for one, values in ends.items()}
        steps = [
            sign * (b - a) > 0 for values in ends.values() for a, b in itertools.pairwise(values)
        ]
        holds = all(sign * change > 0 for change in changes.values())
        form = (
            ".4f"
            if axis == "rmse" and field == "value"
            else ".0f"
            if field == "num_steps"
            else ".1f"
        )
        parts = [
            f"{values[0]:{form}} to {values[-1]:{form}} at ε_i = {one}"
            for one, values in ends.items()
        ]
        value = (
            f"{what} from μ = {plans.LEARNING_RATES[0]:g} to {plans.LEARNING_RATES[-1]:g}:"
            f" {', '.join(parts)}"
        )
        why = f"{sum(steps)} of {len(steps)} single steps of μ go that way; {PATIENCE}"
        return Judged(value, holds, why, changes)

    return check


def largest_distance(which: str) -> Callable[[Evidence], Judged]:
    def check(evidence: Evidence) -> Judged:
        finding = evidence.findings.get(which)
        if finding is None:
            raise NotTestable("no audit was run")
        where = f"on {finding['data']}, {finding['details'].get('steps', '?')} steps"
        if finding["verdict"] not in ("consistent", "violated"):
            raise NotTestable(
                f"{finding['verdict']}: {finding['details'].get('why', '')} ({where})"
            )
        replay, ratio = finding["details"]["replay"], finding["details"]["ratio"]
        pair = replay["pair"]
        value = f"{finding['measured']:.4f}, {ratio:.4f} times the claimed {finding['claimed']:g}"
        why = (  # no ids: the table may be published
            f"{where}, {finding['details']['pairs']} pairs; the worst, at step {replay['step']}: a"
            f" {pair['value']:g} among {pair['ratings_of_item']} ratings of an item, by a user with"
            f" {pair['ratings_of_user']}, {pair['change'].replace('rating ', '')}; "
        )
        if finding["verdict"] == "violated":
            why += "the proof takes the item factors as fixed, but they follow the changed rating"
        else:
            why += "no pair tried refutes it, which is no proof"
        return Judged(
            value,
            finding["verdict"] == "consistent",
            why,
            {"measured": finding["measured"], "ratio": ratio},
        )

    return check
