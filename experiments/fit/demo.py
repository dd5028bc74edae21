"""`dpmf demo`: fit privately, price, compare, save and recommend, on generated ratings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from experiments.cli import console
from experiments.cli import recommend as recommend_command
from experiments.fit import command as fit_command
from experiments.fit import report
from experiments.fit.flags import DEFAULT, with_flags_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """Fit a private model on generated ratings, price it, compare it, save it, and recommend."""

    out: Path | None = None
    """Folder of the model. [a new one in runs/]"""


def run(command: Command) -> None:
    from dpmf_jax import load_model

    console.say(
        "The ratings are GENERATED (seeded, of MovieLens-100K's size); nothing is downloaded."
    )
    result = fit_command.fit(
        with_flags_of(fit_command.Command, DEFAULT)(data="synthetic", out=command.out)
    )
    console.emit(result, json=False, render=report.render)
    model = load_model(result["out"])
    user = str(model.users[0])
    console.say("")
    recommend_command.run(
        recommend_command.Command(model=Path(result["out"]), user=((user,),), top=5)
    )
    console.say(
        f"\nThe model is in {result['out']}: model.json, PRIVACY.md and release.safetensors may be"
        " shown;"
    )
    console.say(f"{result['out']}/private is the curator's. Go on with:")
    console.say("  . .venv/bin/activate")
    console.say(f"  dpmf recommend {result['out']} --user {user}")
    console.say("  dpmf fit --help")
