"""Attacks on a claim: each takes a mechanism and ratings, and returns what it found as `Finding`s."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import jax

    from audits.finding import Finding as Finding
    from audits.finding import Verdict as Verdict
    from dpmf_jax.protocol import Mechanism, Phase
    from dpmf_jax.ratings import Ratings

__all__ = ["FAMILIES", "NOT_BUILT", "QUICK", "Finding", "Verdict", "audit"]

# Families of audits, in the order in which they run, and the module of each.
FAMILIES = {
    "sensitivity": "sensitivity",
    "post-processing": "post_processing",
    "noise": "sampler",
    "density": "density",
    "enumeration": "enumeration",
    "privacy loss": "privacy_loss",
}
QUICK = {  # what each family is asked for where `quick`; less power, the same false alarms
    "sensitivity": {"num_neighbours": 16, "climb": False},
    "privacy loss": {"num_neighbours": 16, "num_runs": 256},
}

# What an auditor may look for here and will not find yet; printed beside every audit.
NOT_BUILT = {
    "membership inference": "what an outsider does with the release alone",
    "KL": "the divergence between errors on trained-on and held-out ratings, as a finding; audits.kl has its functions",
    "coins": "who is sampled, against the rate that is priced, but for the coordinates of local reports",
    "fit": "the program as a black box on both data sets",
}


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
) -> list[Finding]:
    """Every audit that there is, on any mechanism of the protocol's shape; plain functions as its parts will do.

    Args:
      mechanism: whose guarantee(num_steps) is on trial.
      ratings: the data set; its neighbours are made here, within its declared range. Never changed.
      key: of all randomness; the findings carry what replays them. Spent.
      num_steps: length of the runs, and of the claim.
      earlier: phases that ran before, (mechanism, number of steps) each: each is audited for its own steps, on from
        what the one before it made public; with that in the transcript, prices add up and so do the claims.
      delta: where the privacy loss is tested; None: at 1e-2 and 1e-5.
      num_neighbours: of the sensitivity and privacy-loss audits; the others, whose answer hardly depends on the pair,
        try 8. None: 64.
      num_runs: transcripts of the privacy loss, in each direction and for each δ; None: as many as a minute can do.
      quick: fewer runs and neighbours (`QUICK`) where they are not given: less power, the same false-alarm rate.
      only: names of `FAMILIES`; None: all. A family's randomness does not depend on which others run.

    Returns: findings, of the verdicts "consistent", "violated", "inconclusive" and "not applicable"; where there are
      several phases, `details["phase"]` counts them from 0. See `NOT_BUILT` for what is not looked at.

    Raises: ValueError for fewer than one step, neighbour or run, a δ outside (0, 1), or a family that does not exist.
    """
    import jax

    from dpmf_jax import layout, protocol

    for what, value in (("num_steps", num_steps), ("num_neighbours", num_neighbours), ("num_runs", num_runs)):
        if value is not None and not value >= 1:
            raise ValueError(f"{what} must be at least 1; got {value}")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1; got {delta}")
    if unknown := sorted(set(only or ()) - set(FAMILIES)):
        raise ValueError(f"audits are {', '.join(FAMILIES)}; got {', '.join(unknown)}")
    asked: dict[str, dict[str, Any]] = {name: dict(QUICK.get(name, {})) if quick else {} for name in FAMILIES}
    if num_neighbours is not None:
        asked["sensitivity"]["num_neighbours"] = asked["privacy loss"]["num_neighbours"] = num_neighbours
    if num_runs is not None:
        asked["privacy loss"]["num_runs"] = num_runs
    if delta is not None:
        asked["privacy loss"]["deltas"] = (delta,)
    chosen = {name: asked[name] for name in FAMILIES if only is None or name in only}
    data = layout.make(ratings, kind=layout_kind, num_devices=1)
    phases = [(_as_pytree(phase), steps) for phase, steps in (*earlier, (mechanism, num_steps))]
    if not earlier:
        return _findings(*phases[0], ratings, data, key, chosen)
    link_key, *keys = jax.random.split(key, len(phases) + 1)
    return [
        dataclasses.replace(finding, details={**finding.details, "phase": place})
        for place, linked in enumerate(protocol.link(phases, link_key, data))
        for finding in _findings(linked, phases[place][1], ratings, data, keys[place], chosen)
    ]


def _findings(
    mechanism: Mechanism, num_steps: int, ratings: Ratings, data: Any, key: jax.Array, chosen: Mapping[str, Any]
) -> list[Finding]:
    """Of one phase."""
    import jax

    found: list[Finding] = []
    for place, (name, module) in enumerate(FAMILIES.items()):
        if name in chosen:
            run = importlib.import_module(f"audits.{module}").audit
            own_key = jax.random.fold_in(key, place)
            found += run(mechanism, ratings, data, key=own_key, num_steps=num_steps, **chosen[name])
    return found


def _as_pytree(mechanism: Mechanism) -> Mechanism:
    """The mechanism with plain functions wrapped, so that jit takes it as an argument."""
    from jax.tree_util import Partial

    from dpmf_jax.noise import Noise

    def wrap(part: Any) -> Any:
        if isinstance(part, Noise):
            return Noise(*map(wrap, part))
        return part if isinstance(part, Partial) else Partial(part)

    return type(mechanism)(*map(wrap, mechanism))


def __getattr__(name: str) -> Any:
    if name in ("Finding", "Verdict"):
        from audits import finding

        return getattr(finding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
