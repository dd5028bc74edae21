"""`dpmf reproduce`: train figures of a paper again and hold them to the paper's points."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import OutsideTolerance, UsageError
from experiments.cli import console, devices
from experiments.reproduce import run as reproduce_paper
from experiments.reproduce.flags import ROOT
from experiments.reproduce.flags import Command as Command
from experiments.reproduce.paper001 import figures, plans
from experiments.reproduce.paper001.figures import Figure, Request
from experiments.reproduce.paper002 import paper as reproduce_sketch
from experiments.reproduce.paper003 import paper as reproduce_objective
from experiments.reproduce.paper004 import paper as reproduce_local
from experiments.reproduce.pictures import NOTICE
from experiments.reproduce.run import Paper

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from experiments.reproduce.paper001.runs import Progress

HERE: dict[str, Any] = {
    "data_dir": None,
    "out": ROOT,
    "docs": None,
    "devices": None,
    "json": False,
}  # of this machine

CLAIMS_WHAT = "what the paper says, statement by statement, by stored rows"
CLAIMS_DATA = "--out, and ml-100k or generated"
CLAIMS_MINUTES = 1
_OTHERS = (reproduce_sketch.PAPER, reproduce_objective.PAPER, reproduce_local.PAPER)
PAPERS = {paper.catalogue.prefix: paper for paper in _OTHERS}
ALL_CLAIMS = (figures.CLAIMS, *(paper.catalogue.claims for paper in PAPERS.values()))


def run(command: Command) -> None:
    if command.list:
        here = _here(command.data_dir)
        rows = [_listed(figure, here, command) for figure in figures.FIGURES.values()]
        groups = [
            {
                "name": name,
                "figures": names,
                **_on(figures.find(names[0]), here),
                **_amounts(names, command),
            }
            for name, names in figures.GROUPS.items()
        ]
        told: dict[str, Any] = {
            "figures": rows,
            "groups": groups,
            "cores": devices.cores(),
            "minutes_are": plans.COST_OF,
        }
        told["claims"] = {
            "name": figures.CLAIMS,
            "what": CLAIMS_WHAT,
            "data": CLAIMS_DATA,
            "minutes": CLAIMS_MINUTES,
        }
        for paper in PAPERS.values():
            told[f"{paper.key}_claims"] = told["claims"] | {
                "name": paper.catalogue.claims,
                "data": "--out",
            }
            told[paper.key] = paper.catalogue.listed(here)
        console.emit(told, json=command.json, render=_render_list)
        return
    if not command.figures:
        raise UsageError(
            "no figure is named", fix="dpmf reproduce 001/fig1, or dpmf reproduce --list"
        )
    listed = {prefix: reproduce_paper.check(paper, command) for prefix, paper in PAPERS.items()}
    others = [name for name in command.figures if not name.startswith(tuple(PAPERS))]
    chosen = figures.expand([name for name in others if name != figures.CLAIMS])
    _check_claims(chosen, command)
    seeds = command.seeds
    if seeds is not None and (not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0):
        raise UsageError(
            f"--seeds {' '.join(map(str, seeds))} are not distinct numbers from 0 on",
            fix="--seeds 0 1 2",
        )
    told = reproduce(chosen, command)
    for prefix, mine in listed.items():
        if mine:
            told = _with(told, PAPERS[prefix], mine, command)
    if figures.CLAIMS in command.figures:
        told["claims"] = claimed(command)
    for paper in PAPERS.values():
        if paper.catalogue.claims in command.figures:
            told[f"{paper.key}_claims"] = _claimed(paper, command)
    console.emit(told, json=command.json, render=_render)
    if outside := [one for one in told["figures"] if one["result"] == "outside"]:
        raise _outside(outside)


def reproduce(chosen: Sequence[Figure], command: Command) -> dict[str, Any]:
    """Everything but the printing: trains, compares, writes; the result's keys are the command's
    JSON interface.
    """
    if not chosen:
        return {"result": "informative", "figures": [], "out": str(command.out)}
    wanted = _requests(
        chosen, command, scale="small"
    )  # refuses what is not there before anything is loaded
    num_devices = devices.use(command.devices)
    wanted = _requests(
        chosen,
        command,
        scale=command.scale or ("small" if _on_cpu() else "full"),
        num_devices=num_devices,
    )
    try:
        done = [told for group in _by_data(wanted) for told in _group(group, command, num_devices)]
    except KeyboardInterrupt:
        raise console.Interrupted(words(command)) from None
    return {"result": _result(done), "figures": done, "out": str(command.out)}


def _result(done: Sequence[Mapping[str, Any]]) -> str:
    results = {told["result"] for told in done}
    return next(
        one
        for one in ("outside", "inside", "informative", "no points to compare")
        if one in results
    )


def _with(
    told: dict[str, Any], paper: Paper, chosen: Sequence[Any], command: Command
) -> dict[str, Any]:
    """The same with the results of another paper's figures."""
    repeat = words(dataclasses.replace(command, figures=("{figure}",), **HERE))
    try:
        done = reproduce_paper.reproduce(
            paper, chosen, command, _here(command.data_dir), repeat.replace("'", "")
        )
    except KeyboardInterrupt:
        raise console.Interrupted(words(command)) from None
    return told | {"figures": told["figures"] + done, "result": _result([*told["figures"], *done])}


def _claimed(paper: Paper, command: Command) -> dict[str, Any]:
    docs = None if command.docs is None else Path("docs") / "results"
    return reproduce_paper.claimed(
        paper, command, words(Command(figures=(paper.catalogue.claims,), docs=docs))
    )


def _check_claims(chosen: Sequence[Figure], command: Command) -> None:
    """Raises: UsageError for flags that do nothing."""
    claims = set(ALL_CLAIMS)
    if command.docs is not None and not claims & {*command.figures}:
        raise UsageError(
            "--docs goes with 001/claims", fix=f"dpmf reproduce 001/claims --docs {command.docs}"
        )
    for name in ("scale", "beside", "ranks", "series", "seeds"):
        if claims.issuperset(command.figures) and getattr(command, name) not in (None, "auto"):
            raise UsageError(
                "001/claims trains nothing", where=f"--{name}", fix="dpmf reproduce 001/claims"
            )


def claimed(command: Command) -> dict[str, Any]:
    """The table of claims, from the rows that are stored; writes it, and the results page where
    --docs asks for it.
    """
    from experiments.cli import provenance
    from experiments.reproduce.paper001 import claims, page

    stored = claims.stored(command.out)
    devices.use(command.devices)
    console.say(
        f"{figures.CLAIMS}: rows of {len(stored)} figures in {command.out}; auditing the"
        " sensitivity"
    )
    findings = claims.audit_sensitivity(command.data_dir)
    judged = claims.judge(claims.Evidence(stored, findings))
    docs = None if command.docs is None else Path("docs") / "results"
    told = console.plain(
        page.summary(
            judged,
            stored,
            command=words(Command(figures=(figures.CLAIMS,), docs=docs)),
            commit=provenance.commit(),
            device=provenance.device(),
            audit={
                "data": findings["range"]["data"],
                "steps": claims.AUDIT_STEPS,
                "pairs": claims.AUDIT_PAIRS,
                "seed": claims.AUDIT_SEED,
                "findings": findings,
            },
        )
    )
    files = page.write(told, command.out / page.STEM)
    if command.docs is not None:
        files += page.write_docs(told, stored, command.docs)
    return told | {"files": [str(file) for file in files]}


def _on_cpu() -> bool:
    import jax

    return jax.default_backend() == "cpu"


def _requests(chosen: Sequence[Figure], command: Command, **rest: Any) -> dict[Figure, Request]:
    """What is asked of every figure. --ranks and --series go to those that have them, and one of
    them must.

    Raises: UsageError where a figure has nothing of what is asked.
    """
    over_ranks = [figure for figure in chosen if figure.x_name == "n"]
    known = tuple(dict.fromkeys(series for figure in chosen for series in figure.series))
    asked = None if command.series is None else figures.choose_series(known, command.series)
    wanted = {}
    for figure in chosen:
        series = None if asked is None else tuple(name for name in figure.series if name in asked)
        if series == ():
            figures.choose_series(figure.series, asked)
        ranks = command.ranks if figure in over_ranks or not over_ranks else None
        wanted[figure] = Request(
            series=series, ranks=ranks, seeds=command.seeds, beside=command.beside, **rest
        )
        plans.plan(figure, wanted[figure])
    return wanted


def _by_data(wanted: Mapping[Figure, Request]) -> list[dict[Figure, Request]]:
    """Figures on the same ratings share their runs."""
    groups: dict[Any, dict[Figure, Request]] = {}
    for figure, request in wanted.items():
        groups.setdefault((figure.data, figure.fallback, figure.slice), {})[figure] = request
    return list(groups.values())


def _group(
    wanted: Mapping[Figure, Request], command: Command, num_devices: int
) -> list[dict[str, Any]]:
    """Trains what figures on the same ratings need, each run once, then compares and writes them
    one by one.
    """
    from experiments.reproduce.paper001 import report, runs
    from experiments.reproduce.paper001.work import work_of

    some = next(iter(wanted))
    ratings, compared = _ratings(some, command)
    store = command.out / ratings.name  # runs of equal settings on other ratings are others
    names = " ".join(figure.name for figure in wanted)
    planned = {figure: plans.plan(figure, request) for figure, request in wanted.items()}
    everything = [setting for plan in planned.values() for setting in plan.trained]
    estimate = plans.minutes(everything, num_devices)
    console.say(
        f"{names} ({NOTICE})\nall of it: {_amount(everything)}, about {estimate:.0f} minutes on"
        " a CPU"
    )
    for figure, plan in planned.items():
        if plan.left_out:
            console.say(f"{figure.name}: {report.left_out({'left_out': plan.left_out})}")
        if plan.not_beside:
            console.say(f"{figure.name}: {plan.not_beside}")
    work = {
        figure: work_of(
            figure, dataclasses.replace(request, compared=compared, store=store), ratings
        )
        for figure, request in wanted.items()
    }
    needed = [run for one in work.values() for run in one.runs]
    total = sum(
        plans.work(
            s for figure, one in work.items() if one.runs for s in planned[figure].trained
        ).values()
    )
    with console.progress(names, total, every=20.0) as bar:
        curves = runs.train_all(
            needed,
            ratings,
            store,
            num_devices=num_devices,
            chunk_steps=runs.CHUNK_STEPS if _on_cpu() else runs.ACCELERATOR_CHUNK_STEPS,
            report=_told_to(bar, total),
        )
    done = []
    for planned_figure, one in work.items():
        figure = planned_figure.shown_on(ratings.name)
        repeat = dataclasses.replace(command, figures=(figure.name,), **HERE)
        result = one.result(curves)
        told = report.summary(figure, result, command=words(repeat), compared=compared)
        files = report.write(figure, told, result, command.out / figure.stem)
        done.append(
            told | {"out": str(command.out / figure.stem), "files": [str(file) for file in files]}
        )
    return done


def _ratings(figure: Figure, command: Command) -> tuple[Ratings, bool]:
    """The figure's ratings, and whether they are the paper's.

    Raises: DataError where neither they nor a fallback are there.
    """
    from dpmf_jax.data import datasets

    name, cut = figure.data, figure.slice
    if (
        figure.fallback is not None
        and _on(figure, _here(command.data_dir))["here"] == figure.fallback
    ):
        name, cut = figure.fallback, None
        console.say(
            f"{figure.data} is not there: {name} instead, with numbers of its own, nothing to"
            " compare"
        )
    return (
        datasets.load(name, data_dir=command.data_dir, split=None, slice=cut),
        name == figure.data,
    )


def _here(data_dir: Path | None) -> set[str]:
    """The data sets that are there."""
    from dpmf_jax.data import datasets

    return {row["name"] for row in datasets.list_datasets(data_dir) if row["path"] is not None}


def _on(figure: Figure, here: set[str]) -> dict[str, Any]:
    """What the figure runs on here: the paper's data, else what stands in for it, else None."""
    return {"here": next((name for name in (figure.data, figure.fallback) if name in here), None)}


def _told_to(bar: Callable[..., None], total: int) -> Callable[[Progress], None]:
    def report(now: Progress) -> None:
        left = "?" if now.minutes_left is None else f"{now.minutes_left:.1f} min"
        more = (
            {} if now.total == total else {"of": f"about {now.total}"}
        )  # a rule ends a run when it does
        bar(now.done, **more, run=now.run, rmse=now.rmse, left=left)

    return report


def words(command: Command) -> str:
    """The command line that does, or resumes, this."""
    said = ["dpmf", "reproduce", *command.figures]
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if field.name == "figures" or value == field.default:
            continue
        said.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            said += map(str, value) if isinstance(value, tuple) else [str(value)]
    return shlex.join(said)


def _outside(told: Sequence[Mapping[str, Any]]) -> OutsideTolerance:
    from experiments.reproduce.paper001 import report

    first = told[0]
    if first["figure"].startswith(tuple(PAPERS)):
        worst = first["worst"]
        return OutsideTolerance(
            f"{first['figure']}: {first['outside']} of {first['checked']} checked points are too"
            " far from the paper",
            where=(
                f"the furthest: {worst['series']} after {worst['x']:g} rounds,"
                f" {worst['difference']:+.4f}"
            ),
            fix="check that the ratings are the published ones (dpmf data check)",
        )
    return OutsideTolerance(
        "; ".join(
            f"{one['figure']}: {one['outside']} of {one['checked']} checked points are too far"
            for one in told
        )
        + " from the paper",
        where=(
            f"the furthest of {first['figure']}: {report.furthest(first)}; all of them in"
            f" {first['files'][0]}"
        ),
        fix=(
            "check that the ratings are the published ones (dpmf data check); "
            f"{first['ratings']['name']} has {first['ratings']['count']} ratings here"
        ),
    )


# ---------------------------------------------------------------------------------------------- wha


def _amount(settings: Sequence[plans.Setting]) -> str:
    steps = plans.work(settings)
    number = "1 run" if len(steps) == 1 else f"{len(steps)} runs"
    return f"{number}, {sum(steps.values()):,} steps"


def _listed(figure: Figure, here: set[str], command: Command) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(figure, name)
        for name in ("name", "paper", "number", "title", "what", "x_name", "data", "fallback")
    }
    row["compared"] = bool(figure.points)
    return row | _on(figure, here) | _amounts((figure.name,), command)


def _amounts(names: Sequence[str], command: Command) -> dict[str, Any]:
    """Runs, steps and minutes at both scales, of figures that share their runs."""
    amounts = {}
    for scale in ("small", "full"):
        request = Request(scale=scale, beside=command.beside)
        settings = [
            setting for name in names for setting in plans.plan(figures.find(name), request).trained
        ]
        steps = plans.work(settings)
        minutes = round(plans.minutes(settings, devices.cores()), 1)
        amounts[scale] = {"runs": len(steps), "steps": sum(steps.values()), "minutes": minutes}
    return amounts


def _render_list(result: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        title="dpmf reproduce FIGURE…",
        caption=(
            f"* the paper's points are not known. Minutes: estimates for {result['cores']} CPU"
            f" cores ({result['minutes_are']}), what is trained beside included (--beside). Figures"
            " share runs; an interrupted call goes on. --data-dir says where the data sets are."
        ),
    )
    for heading in ("figure", "what", "data", "small scale", "full scale"):
        scale = heading.endswith("scale")
        table.add_column(
            heading,
            justify="right" if scale else "left",
            no_wrap=heading != "what" and heading != "data",
        )
    for row in result["figures"]:
        data = (
            row["data"]
            if row["here"] in (row["data"], None)
            else f"{row['here']}, not {row['data']}"
        )
        what = row["what"] if row["compared"] else f"{row['what']} *"
        table.add_row(row["name"], what, data, *_scales(row))
    table.add_section()
    for row in result["groups"]:
        numbers = ", ".join(name.partition("fig")[2] for name in row["figures"])
        table.add_row(
            row["name"], f"figures {numbers}", figures.find(row["figures"][0]).data, *_scales(row)
        )
    for row in (row for paper in PAPERS.values() for row in result[paper.key]):
        minutes = [f"about {_duration(row[scale]['minutes'])}" for scale in ("small", "full")]
        minutes = minutes if row["here"] else ["data absent"] * 2
        table.add_row(row["name"], row["what"], " ".join(row["here"] or row["data"]), *minutes)
    table.add_section()
    for claims in (result["claims"], *(result[f"{paper.key}_claims"] for paper in PAPERS.values())):
        table.add_row(
            claims["name"],
            claims["what"],
            claims["data"],
            *[f"0 runs, {claims['minutes']} min"] * 2,
        )
    return table


def _scales(row: Mapping[str, Any]) -> list[str]:
    if row["here"] is None:
        return ["data absent"] * 2
    return [
        f"{row[scale]['runs']} runs, {_duration(row[scale]['minutes'])}"
        for scale in ("small", "full")
    ]


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _render(told: Mapping[str, Any]) -> Any:
    from rich.console import Group

    shown = []
    for one in told["figures"]:
        paper = PAPERS.get(one["figure"].partition("/")[0] + "/")
        if paper is None:
            shown += _render_figure(one)
        else:
            shown += paper.programs().render(one, paper.catalogue.figures[one["figure"]])
    names = ("claims", *(f"{paper.key}_claims" for paper in PAPERS.values()))
    return Group(
        *shown, *(part for name in names if name in told for part in _render_claims(told[name]))
    )


def _render_claims(told: Mapping[str, Any]) -> list[Any]:
    from rich.table import Table

    from experiments.reproduce.paper001 import page

    table = Table(title=f"{told['claims']} ({told['notice']})", show_lines=True)
    for heading in ("statement, in our words", "verdict", "measured, and why"):
        table.add_column(heading, ratio={"verdict": None, "measured, and why": 3}.get(heading, 2))
    for row in told["rows"]:
        parts = [row["value"], row["why"], f"[dim]how: {row['how']}[/dim]"]
        table.add_row(
            f"{row['statement']} ({row['where']})",
            row["verdict"],
            "\n".join(part for part in parts if part),
        )
    words = [page.counted(told), *([told["beside"]] if told["beside"] else [])]
    return [table, "\n".join([*words, *(f"wrote {file}" for file in told["files"])])]


def _render_figure(told: Mapping[str, Any]) -> list[Any]:
    from rich.table import Table

    from experiments.reproduce.paper001 import report
    from experiments.reproduce.paper001.figures import AXES

    table = Table(title=f"{told['figure']} ({told['notice']})")
    left = ("series", "of", "result")
    for heading in ("series", "of", "x", "J", "paper", "ours", "difference", "result"):
        table.add_column(heading, justify="left" if heading in left else "right")
    decided = [row for row in told["rows"] if row["result"] != "informative"]
    shown = [
        row
        for row in told["rows"]
        if row["kind"] not in ("line_start", "line_vertex") and row not in decided
    ]
    for row in decided or shown:
        numbers = (
            report.number(row["paper"]),
            report.number(row["value"]),
            report.signed(row["difference"]),
        )
        steps = "" if row["num_steps"] is None else f"{row['num_steps']:.6g}"
        table.add_row(
            row["series"], AXES[row["axis"]], f"{row['x']:g}", steps, *numbers, row["result"]
        )
    starts = [
        abs(r["difference"])
        for r in told["rows"]
        if r["kind"] == "line_start" and r["difference"] is not None
    ]
    ended = [row for row in told["rows"] if row["kind"] == "patience" and row["axis"] == "rmse"]
    headlines = {
        setting["series"]: setting["headline"] for setting in told["settings"]
    }  # the last of each series
    lines = [
        (
            f"{report.verdict_words(told)}: {told['checked'] - told['outside']} of"
            f" {told['checked']} checked points"
        ),
        f"rule: {told['rule']}",
        *([f"at step 0 within {max(starts):.4f} of the paper (informative)"] if starts else []),
        *([report.left_out(told)] if told["left_out"] else []),
        *(
            [
                f"early stopping by patience (not private, informative): {len(ended)} rows in the"
                " files"
            ]
            if ended
            else []
        ),
        *(f"{name}: {headline}" for name, headline in headlines.items()),
    ]
    files = "\n".join(f"wrote {file}" for file in told["files"])
    return [table, "\n".join(lines), *_render_beside(told), files, ""]


def _render_beside(told: Mapping[str, Any]) -> list[Any]:
    """What stands beside the paper's, each with its promise, and where it does not beat a simple
    control.
    """
    from rich.table import Table

    from experiments.reproduce.paper001 import report
    from experiments.reproduce.paper001.beside import WORDS

    found = told["beside"]
    if not found:
        return []
    words = [
        text
        for text in (found["sentence"], report.simple_controls(found), found["not_beside"])
        if text
    ]
    if not found["verdicts"]:
        return ["\n".join(words)]
    table = Table(title=f"{told['figure']}, held out ({told['notice']})")
    for heading in (
        "trained, and what it promises",
        "series",
        "x",
        "held out",
        "control",
        "of control",
        "verdict",
    ):
        numeric = heading in ("x", "held out", "of control")
        table.add_column(
            heading,
            justify="right" if numeric else "left",
            ratio=1 if "promises" in heading else None,
        )
    for one in found["verdicts"]:
        place = "" if one["x"] is None else f"{one['x']:g}"
        numbers = (
            report.number(one["rmse_test"]),
            WORDS[one["control"]],
            report.number(one["control_rmse_test"]),
        )
        promise = f"{WORDS[one['variant']]}: [dim]{one['headline']}[/dim]"
        table.add_row(promise, one["series"], place, *numbers, one["verdict"])
    return [table, "\n".join([*words, *report.relations(found)])]
