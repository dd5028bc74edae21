"""One mechanism on trial: every family of audits in turn, timed; and how useful a run of it is."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dpmf_jax.errors import UsageError
from experiments.cli import console
from experiments.fit.mechanism_file import declared

CERTAIN = 1e-8  # a p-value that leaves no room for chance
ANOTHER = 1_000_003  # between the seeds of a finding's two keys
# Values of δ at which a claim is drawn.
CURVE = tuple(10.0**-k for k in (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8))
# What is said of a whole trial, and its findings; both for JSON.
Told = tuple[dict[str, Any], list[dict[str, Any]]]


class Trial(NamedTuple):
    """What is on trial.

    Attributes:
      phases: as `fit_mechanisms.phases_and_settings` gives them.
      source: the command that makes this trial again, with its label.
      why: the settings in words.
      short: steps, by family of audits, where all steps would take too long; the claim is then that
        of as many.
      options: arguments, by family, of its audit.
      make_phases: ratings -> (phases, settings), by the same flags.
      group: int[users], whose budget is which, where users declared their own.
    """

    label: str
    phases: Sequence[Any]
    settings: Mapping[str, Any]
    ratings: Any
    source: Mapping[str, Any]
    why: str = ""
    short: Mapping[str, int] = {}
    options: Mapping[str, Mapping[str, Any]] = {}
    make_phases: Callable[[Any], tuple[Sequence[Any], Mapping[str, Any]]] | None = None
    group: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is tried; None is the audits' own choice.

    Attributes:
      neighbours: as `num_neighbours` of `audits.audit`.
      runs: as its `num_runs`.
      quick: whether to take fewer of everything.
      delta: where the privacy loss is tested.
      layout: kind of layout.
    """

    neighbours: int | None = None
    runs: int | None = None
    quick: bool = False
    delta: float | None = None
    layout: str = "auto"


def findings(trial: Trial, family: str, *, seed: int, sizes: Sizes) -> list[dict[str, Any]]:
    """The findings of one family, for JSON; the same seed and sizes give the same ones.

    A claim is not called violated by what one key in ten thousand brings about: where the p-value
    leaves room for that, another key has to say it too, or the finding is inconclusive.
    """
    other_seed = (seed + ANOTHER) % 2**64
    return confirmed(
        _findings_of_key(trial, family, seed=seed, sizes=sizes),
        lambda: _findings_of_key(trial, family, seed=other_seed, sizes=sizes),
    )


def confirmed(
    found: list[dict[str, Any]], with_another_key: Callable[[], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The findings, where what chance may have said is held to those of another key."""
    doubted = [
        one for one in found if one["verdict"] == "violated" and _least_p_value(one) > CERTAIN
    ]
    if not doubted:
        return found
    again = {_identity(one): one for one in with_another_key()}
    for one in doubted:
        other = again.get(_identity(one))
        if other is not None and other["verdict"] != "violated":
            why = (
                f"p = {_least_p_value(one):.2g}, as chance alone brings it about in one run of ten"
                " thousand, and another key does not say so"
            )
            one |= {"verdict": "inconclusive", "details": {"why": why} | one["details"]}
    return found


def _least_p_value(finding: dict[str, Any]) -> float:
    """The least p-value of what was measured; 0 where it does not rest on chance."""
    details = finding["details"]
    told = [
        details.get("p_value"),
        *details.get("p_values", {}).values(),
        *(one["p_value"] for one in details.get("directions", ())),
    ]
    return min((float(one) for one in told if one is not None), default=0.0)


def _identity(finding: dict[str, Any]) -> tuple[Any, ...]:
    return finding["mechanism"], finding["audit"], finding["details"].get("phase")


def _findings_of_key(trial: Trial, family: str, *, seed: int, sizes: Sizes) -> list[dict[str, Any]]:
    """The findings of one family with one key."""
    import audits
    from dpmf_jax.noise import keys

    mechanism, steps = trial.phases[-1]
    names = phase_names(trial)
    spec = declared(trial.settings["mechanism"])
    options = {
        **trial.options,
        "sensitivity": {"group": trial.group, **trial.options.get("sensitivity", {})},
        "fit": {
            "make_phases": trial.make_phases,
            "steps_paid": spec.num_steps,
            **trial.options.get("fit", {}),
        },
        **{
            attack: {"control": spec.control, **trial.options.get(attack, {})}
            for attack in ("membership", "one run")
        },
    }
    found = audits.audit(
        mechanism,
        trial.ratings,
        key=keys.from_seed(seed),
        num_steps=min(steps, trial.short.get(family, steps)),
        earlier=tuple(trial.phases[:-1]),
        delta=sizes.delta,
        num_neighbours=sizes.neighbours,
        num_runs=sizes.runs,
        quick=sizes.quick,
        only=(family,),
        layout_kind=sizes.layout,
        options=options,
    )
    return [
        {"mechanism": names[one.details.get("phase", -1)], "family": family, **one.to_dict()}
        for one in found
    ]


def phase_names(trial: Trial) -> list[str]:
    """Names of the phases in their order; the last one's is that of `--mechanism`."""
    return [phase.guarantee(1).mechanism for phase, _ in trial.phases[:-1]] + [
        trial.settings["mechanism"]
    ]


def run(
    trial: Trial,
    families: Iterable[str],
    *,
    seed: int,
    sizes: Sizes,
    useful: bool,
    report: Callable[[str], None],
) -> Told:
    """What is said of the whole trial, and its findings.

    Args:
      useful: whether to train once, and compare with the simple controls.
      report: called with the name of what comes next.
    """
    import accounting

    seconds: dict[str, float] = {}
    found: list[dict[str, Any]] = []
    for family in families:
        report(family)
        started = time.perf_counter()
        found += findings(trial, family, seed=seed, sizes=sizes)
        seconds[family] = round(time.perf_counter() - started, 2)
    guarantee = accounting.compose(*(phase.guarantee(num) for phase, num in trial.phases))
    if sizes.delta is not None and guarantee.delta > 0:
        guarantee = guarantee.at_delta(sizes.delta)
    told = {
        "label": trial.label,
        "why": trial.why,
        "mechanism": trial.settings["mechanism"],
        "data": trial.ratings.name,
        "steps": trial.phases[-1][1],
        "phases": phase_names(trial),
        "guarantee": guarantee.to_dict() | {"headline": guarantee.headline},
        "curve": curve(guarantee),
        "settings": dict(trial.settings),
        "notes": list(trial.ratings.notes),
        "options": {family: dict(options) for family, options in trial.options.items()},
        "utility": None,
        "source": dict(trial.source),
        "data_sha256": trial.ratings.sha256(),
    }
    if useful:
        report("a run and its controls")
        started = time.perf_counter()
        told["utility"] = utility(trial, seed)
        seconds["utility"] = round(time.perf_counter() - started, 2)
    return console.plain(told | {"seconds": seconds}), console.plain(found)


def curve(guarantee: Any) -> list[list[float]]:
    """The claim as points (ε, δ): exact for Gaussian steps, else an upper bound; empty for none."""
    from accounting import composition, gaussian
    from accounting.loss import Approximate

    losses = guarantee.losses
    if (
        guarantee.status == "none"
        or not losses
        or any(isinstance(loss, Approximate) for loss in losses)
    ):
        return []
    if guarantee.rho is not None:
        points = [(gaussian.epsilon_exact(guarantee.rho, delta), delta) for delta in CURVE]
    else:
        price = composition.pld(losses, unit=guarantee.unit)
        points = [(price.epsilon(delta), delta) for delta in CURVE]
    return [[epsilon, delta] for epsilon, delta in points if math.isfinite(epsilon)]


def utility(trial: Trial, seed: int) -> dict[str, Any]:
    """The training RMSE of one run, beside the global mean and the item means; unpriced, for the
    curator.
    """
    from dpmf_jax.training import controls
    from dpmf_jax.training import fit as fitting

    mechanism, steps = trial.phases[-1]
    told: dict[str, Any] = {
        "rmse": None,
        "why": None,
        "controls": controls.controls(trial.ratings, None, names=SIMPLE),
    }
    try:
        model = fitting.fit(
            trial.ratings,
            mechanism,
            num_steps=steps,
            earlier=tuple(trial.phases[:-1]),
            seed=seed,
            num_devices=1,
            chunk_steps=steps,
        )
    except (fitting.Diverged, UsageError) as error:  # such as a state that predicts nothing
        return told | {"why": error.what}
    assert model.metrics is not None
    return told | {"rmse": model.metrics["rmse_train"]}


SIMPLE = ("global_mean", "item_means")
