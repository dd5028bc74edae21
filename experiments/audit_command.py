"""`dpmf audit`: try to break the claim of a mechanism, or of a saved model, on ratings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dpmf_jax.errors import AuditViolated, UsageError
from experiments import console, fit_command, fit_mechanisms
from experiments.fit_flags import MechanismFlags, RatingsFlags

SMALL = (60, 40, 700, 3)  # users, items, ratings and rank of what is generated where no data are named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(MechanismFlags, RatingsFlags):
    """Try to break a claim: run every audit there is on a mechanism. Exit code 5 if one finds it false."""

    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA|MODEL")] = None
    """A data set that `dpmf data list` knows, a file of ratings, or the folder of a saved model. By default small
    generated ratings."""
    ratings: str | None = None
    """For a saved model: the ratings to audit it on."""
    neighbours: int = 64
    """How many neighbouring data sets the sensitivity audit tries; all of them where there are no more."""
    seed: int = 0
    """Of the audit's own randomness; the same seed gives the same findings."""
    layout: Literal["auto", "split", "dense"] = "auto"
    """How ratings are laid out on the device."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> None:
    """Prints the findings.

    Raises:
      AuditViolated: a claim was found to be false; after the findings were printed.
    """
    result = audit(command)
    console.emit(result, json=command.json, render=render)
    if broken := [finding["audit"] for finding in result["findings"] if finding["verdict"] == "violated"]:
        raise AuditViolated(
            f"the claim of {result['mechanism']} does not hold: {len(broken)} of {len(result['findings'])} findings",
            where="; ".join(broken),
            fix="use a mechanism whose guarantee is proved, or report a bug if it is one",
        )


def audit(command: Command) -> dict[str, Any]:
    """Everything that `dpmf audit` does but the printing; the keys of the result are the command's JSON interface."""
    if command.neighbours < 1:
        raise UsageError(f"--neighbours must be at least 1; got {command.neighbours}", fix="--neighbours 64")
    folder = Path(command.target) if command.target and (Path(command.target) / "model.json").is_file() else None
    if folder is None and command.ratings is not None:
        raise UsageError("--ratings goes with a saved model", fix="dpmf audit DATA, or dpmf audit MODEL --ratings DATA")
    if folder is None:
        ratings = read(command, command.target)
        phases, settings = fit_mechanisms.made(command, ratings)
    else:
        phases, settings = saved(folder, command)
        ratings = read(command, command.ratings)
        if list(ratings.rating_range) != settings["rating_range"]:
            raise UsageError(
                f"the ratings have range {list(ratings.rating_range)}, the model was made for "
                f"{settings['rating_range']}",
                fix="audit the model on ratings of the range it was made for",
            )

    import accounting
    import audits
    from dpmf_jax import keys

    made, steps = phases[-1]
    names = [phase.guarantee(1).mechanism for phase, _ in phases[:-1]] + [settings["mechanism"]]
    console.say(f"auditing {settings['mechanism']} on {ratings.name}: {steps} steps, {command.neighbours} neighbours")
    findings = audits.audit(
        made,
        ratings,
        key=keys.from_seed(command.seed),
        num_steps=steps,
        earlier=phases[:-1],
        num_neighbours=command.neighbours,
        layout_kind=command.layout,
    )
    return {
        "data": ratings.name,
        "mechanism": settings["mechanism"],
        "steps": steps,
        "phases": names,
        "seed": command.seed,
        "findings": [{"mechanism": names[f.details.get("phase", -1)], **f.to_dict()} for f in findings],
        "violated": sum(finding.verdict == "violated" for finding in findings),
        "not_built": dict(audits.NOT_BUILT),
        "guarantee": accounting.compose(*(phase.guarantee(num) for phase, num in phases)).to_dict(),
        "settings": settings,
        "notes": list(ratings.notes),
    }


def read(command: Command, data: str | None) -> Any:
    """The ratings to audit on; small generated ones where none are named."""
    if data is None:
        from dpmf_jax import synthetic

        users, items, num, rank = SMALL
        return synthetic.generate(num_users=users, num_items=items, num_ratings=num, rank=rank)
    return fit_command.read(_fit(command, data))[0]


def _fit(command: Command, data: str | None) -> fit_command.Command:
    """The same settings as flags of `dpmf fit`, all ratings in training."""
    shared = {field.name for field in dataclasses.fields(fit_command.Command)} - {"seed", "data", "json"}
    values = {name: value for name, value in vars(command).items() if name in shared}
    return fit_command.Command(data=data, test_fraction=0.0, seed=command.seed, **values)


def saved(folder: Path, command: Command) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(phases, settings) of a saved model, made anew from its public settings.

    Raises:
      UsageError: a flag that would change the claim of the model, or settings that are not those of a known mechanism.
    """
    import accounting
    from dpmf_jax import model

    fields = dataclasses.fields(MechanismFlags)
    if given := [field.name for field in fields if getattr(command, field.name) != field.default]:
        flag = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"a saved model has its own settings; {flag} would be another claim", fix=f"leave out {flag}")
    loaded = model.load(folder)
    settings = dict(loaded.settings)
    public = loaded.release.item_factors if settings.get("items") else None
    public = loaded.release.user_factors if settings.get("users") else public
    try:
        steps = fit_mechanisms.num_steps(settings, loaded.guarantee.steps)  # patience may have ended it
        phases = fit_mechanisms.phases(settings | {"steps": steps}, public)
    except KeyError:
        where = str(folder / "model.json")
        raise UsageError("the model does not say how it was made", where=where, fix="fit it anew") from None
    if accounting.compose(*(phase.guarantee(num) for phase, num in phases)).epsilon != loaded.guarantee.epsilon:
        raise UsageError(
            "the model's guarantee is not that of its settings", where=str(folder / "model.json"), fix="fit it anew"
        )
    return phases, settings


COLOUR = {"consistent": "green", "violated": "bold red", "inconclusive": "yellow", "not applicable": "dim"}


def render(result: Mapping[str, Any]) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    guarantee = result["guarantee"]
    table = Table(
        title=f"{result['mechanism']} on {result['data']}, {result['steps']} steps: status {guarantee['status']}",
        caption="measured on the ratings and not priced: for the curator",
    )
    table.add_column("audit", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured", justify="right")
    table.add_column("claimed", justify="right")
    table.add_column("claim")
    lines: list[str] = []
    for finding in result["findings"]:
        verdict = Text(finding["verdict"], style=COLOUR[finding["verdict"]])
        numbers = [_number(finding[name]) for name in ("measured", "claimed")]
        name = finding["audit"]
        if finding["mechanism"] != result["mechanism"]:
            name = f"{finding['mechanism']}: {name}"
        table.add_row(Text(name), verdict, *numbers, Text(finding["claim"]))
        if finding["verdict"] == "violated":
            lines += _evidence(finding)
    lines += [
        "",
        "consistent: this audit failed to break the claim on these ratings; it does not prove it.",
        "Not built yet, so not looked at: "
        + "; ".join(f"{name} ({what})" for name, what in result["not_built"].items())
        + ".",
        *(f"note: {note}" for note in result["notes"]),
    ]
    return Group(table, Text("\n".join(lines)))


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, int | float) else str(value)


def _evidence(finding: Mapping[str, Any]) -> list[str]:
    replay = finding["details"].get("replay", {})
    pair = ", ".join(f"{name} {value}" for name, value in replay.get("pair", {}).items())
    at = "".join(
        f", {name.replace('_', ' ')} {replay[name]}" for name in ("step", "first_step", "leaf") if name in replay
    )
    times = finding["details"].get("ratio")  # a number, or "inf" as JSON has it
    ratio = "" if times is None else f", {float(times):.4f} times the claim"
    return [f"violated: {finding['audit']}: {pair}{at}{ratio}; key {replay.get('key')}"]
