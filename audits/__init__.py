"""Attacks on a claim: each takes a mechanism and ratings, and returns `Finding`s."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import jax

    from audits.finding import Finding as Finding
    from audits.finding import Verdict as Verdict
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.layout import Layout
    from dpmf_jax.protocol import Mechanism, Phase

PROJECT = "dpmf-jax"  # see dpmf_jax.installed
__all__ = ["FAMILIES", "NOT_QUICK", "QUICK", "Finding", "Verdict", "audit", "families"]

# Families of audits, in the order in which they run, and the module of each.
FAMILIES = {
    "sensitivity": "mechanism.sensitivity",
    "post-processing": "mechanism.post_processing",
    "noise": "mechanism.sampler",
    "noise law": "mechanism.noise_law",
    "keys": "mechanism.keys",
    "faults": "mechanism.faults",
    "coins": "mechanism.coins",
    "density": "mechanism.density",
    "enumeration": "mechanism.enumeration",
    "privacy loss": "mechanism.privacy_loss",
    "membership": "release.membership",
    "one run": "release.one_run",
    "divergence": "release.divergence",
    "fit": "program.fit",
    "lookup": "mechanism.lookup",
    "user price": "mechanism.user_price",
}
QUICK = {  # arguments of each where `quick`: less power, the same false alarms
    "sensitivity": {"num_neighbours": 16, "climb": False},
    "coins": {"num_neighbours": 4, "num_samples": 512},
    "privacy loss": {"num_neighbours": 1, "num_runs": 128, "deltas": (1e-2,)},
    "membership": {"num_shadows": 32, "num_targets": 8, "num_watchers": 0},
    "one run": {"num_canaries": 64},
    "divergence": {"num_runs": 96, "num_canaries": 64},
    "lookup": {
        "num_neighbours": 4,
        "num_places": 1,
        "num_runs": 2_048,
        "num_drawn": 1 << 16,
        "num_whole": 1 << 16,
        "both_ends": False,
    },
}
NOT_QUICK = (
    "one run",
    "divergence",
    "fit",
)  # left out where `quick`, unless they are asked for by name
WHOLE_RUN = ("keys", "membership", "fit")  # which are given the phases before
ONCE = ("membership", "fit")  # which are tried on the whole alone, not on every phase


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    *,
    key: jax.Array,
    num_steps: int,
    earlier: Sequence[Phase] = (),
    delta: float | None = None,
    num_neighbours: int | None = None,
    num_runs: int | None = None,
    quick: bool = False,
    only: Collection[str] | None = None,
    layout_kind: str = "auto",
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Finding]:
    """The findings of every audit on a mechanism of the protocol's shape.

    Its parts may be plain functions.

    Args:
      mechanism: whose guarantee(num_steps) is on trial.
      ratings: the data set; its neighbours are made here, within its declared range. Never changed.
      key: of all randomness; the findings carry what replays them. Spent.
      num_steps: length of the runs, and of the claim.
      earlier: phases that ran before, (mechanism, number of steps) each. Each is audited for its
        own steps, and starts from what the one before it made public. With that in the transcript,
        prices add up and so do the claims. Membership and the program that fits are tried once, on
        the whole.
      delta: where the privacy loss is tested; None: at 1e-2 and 1e-5.
      num_neighbours: of the sensitivity and privacy-loss audits. The other audits try 8: their
        answer hardly depends on the pair. None: 64, and for the sensitivity all of them where that
        is cheap.
      num_runs: transcripts of the privacy loss, in each direction and for each δ; None: as many as
        a minute can do.
      quick: whether to take fewer runs, neighbours and δ (`QUICK`) where they are not given, and to
        leave out `NOT_QUICK`: less power, the same false-alarm rate.
      only: names of `FAMILIES`; None: all. The randomness of each does not depend on which others
        run.
      options: by family, arguments of its own `audit`, such as {"membership": {"num_shadows": 32}}.

    Returns: findings, whose verdicts are "consistent", "violated", "inconclusive" or "not
      applicable". Where there are several phases, `details["phase"]` counts them from 0.

    Raises:
      UsageError: a part is not of the protocol's shape; it is named.
      ValueError: fewer than one step, neighbour or run, a δ outside (0, 1), or a family that does
        not exist.
    """
    import jax

    from accounting import guards
    from dpmf_jax import layout, parts, protocol

    for what, value in (
        ("num_steps", num_steps),
        ("num_neighbours", num_neighbours),
        ("num_runs", num_runs),
    ):
        if value is not None:
            guards.count(what, value)
    if delta is not None:
        guards.probability("delta", delta)
    options = options or {}
    if unknown := sorted({*(only or ()), *options} - set(FAMILIES)):
        raise ValueError(f"audits are {', '.join(FAMILIES)}; got {', '.join(unknown)}")
    arguments: dict[str, dict[str, Any]] = {
        name: {**(QUICK.get(name, {}) if quick else {}), **options.get(name, {})}
        for name in families(quick=quick, only=only)
    }
    for family, name, value in (
        ("sensitivity", "num_neighbours", num_neighbours),
        ("privacy loss", "num_neighbours", num_neighbours),
        ("privacy loss", "num_runs", num_runs),
        ("privacy loss", "deltas", None if delta is None else (delta,)),
    ):
        if value is not None and family in arguments:
            arguments[family][name] = value
    told = num_neighbours is not None or "num_neighbours" in options.get("sensitivity", {})
    if "sensitivity" in arguments and not told:
        arguments["sensitivity"]["exhaustive"] = True
    data = layout.make(ratings, kind=layout_kind, num_devices=1)
    phases = [
        (parts.as_pytree(phase), steps) for phase, steps in (*earlier, (mechanism, num_steps))
    ]
    parts.check_prices(phases)
    parts.check(phases, data)
    if not earlier:
        return _findings(*phases[0], ratings, data, key, arguments)
    link_key, *keys = jax.random.split(key, len(phases) + 1)
    of_a_part = {name: own for name, own in arguments.items() if name not in ONCE}
    return [
        dataclasses.replace(finding, details={**finding.details, "phase": place})
        for place, linked in enumerate(protocol.link(phases, link_key, data))
        for finding in _findings(
            *(linked, phases[place][1], ratings, data, keys[place]),
            arguments if place == len(phases) - 1 else of_a_part,
            phases[: place + 1],
        )
    ]


def families(*, quick: bool = False, only: Collection[str] | None = None) -> list[str]:
    """The `FAMILIES` that run, in their order."""
    left_out = NOT_QUICK if quick and only is None else ()
    return [name for name in FAMILIES if name not in left_out and (only is None or name in only)]


def _findings(
    mechanism: Mechanism,
    num_steps: int,
    ratings: Ratings,
    data: Layout,
    key: jax.Array,
    arguments: Mapping[str, Mapping[str, Any]],
    phases: Sequence[Phase] = (),
) -> list[Finding]:
    """The findings on one phase, the last of `phases` as it goes on from the one before it."""
    import jax

    by_family: dict[str, list[Finding]] = {}
    # The privacy loss rests on the densities.
    needed = {*arguments, "density"} if "privacy loss" in arguments else set(arguments)
    for place, (name, module) in enumerate(FAMILIES.items()):
        if name not in needed:
            continue
        own_key = jax.random.fold_in(key, place)
        own, options = mechanism, dict(arguments.get(name, {}))
        if name in WHOLE_RUN and phases:  # these run all phases themselves
            own, options["earlier"] = phases[-1][0], phases[:-1]
        if name == "privacy loss":
            options["density_findings"] = by_family["density"]
        run = importlib.import_module(f"audits.{module}").audit
        by_family[name] = run(own, ratings, data, key=own_key, num_steps=num_steps, **options)
    return [one for name, findings in by_family.items() if name in arguments for one in findings]


def __getattr__(name: str) -> Any:
    if name in ("Finding", "Verdict"):
        from audits import finding

        return getattr(finding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
