"""Attacks on a claim: each takes a mechanism and ratings, and returns what it found as `Finding`s."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jax

    from audits.finding import Finding as Finding
    from audits.finding import Verdict as Verdict
    from dpmf_jax.protocol import Mechanism, Phase
    from dpmf_jax.ratings import Ratings

__all__ = ["NOT_BUILT", "Finding", "Verdict", "audit"]

# What an auditor may look for here and will not find yet; printed beside every audit.
NOT_BUILT = {
    "privacy loss": "a lower bound on epsilon, by the hundreds of runs that it takes; audits.privacy_loss has it",
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
    num_neighbours: int = 64,
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
      num_neighbours: of the sensitivity audit; the others, whose answer hardly depends on the pair, try 8.

    Returns: findings, of the verdicts "consistent", "violated", "inconclusive" and "not applicable"; where there are
      several phases, `details["phase"]` counts them from 0. See `NOT_BUILT` for what is not looked at.

    Raises: ValueError for fewer than one step or neighbour.
    """
    import jax

    from dpmf_jax import layout, protocol

    if not (num_steps >= 1 and num_neighbours >= 1):
        raise ValueError(f"num_steps and num_neighbours must be at least 1; got {num_steps} and {num_neighbours}")
    data = layout.make(ratings, kind=layout_kind, num_devices=1)
    phases = [(_as_pytree(phase), steps) for phase, steps in (*earlier, (mechanism, num_steps))]
    if not earlier:
        return _findings(*phases[0], ratings, data, key, num_neighbours)
    link_key, *keys = jax.random.split(key, len(phases) + 1)
    return [
        dataclasses.replace(finding, details={**finding.details, "phase": place})
        for place, linked in enumerate(protocol.link(phases, link_key, data))
        for finding in _findings(linked, phases[place][1], ratings, data, keys[place], num_neighbours)
    ]


def _findings(
    mechanism: Mechanism, num_steps: int, ratings: Ratings, data: Any, key: jax.Array, num_neighbours: int
) -> list[Finding]:
    """Of one phase."""
    import jax

    from audits import density, enumeration, post_processing, sampler, sensitivity

    keys = jax.random.split(key, 5)
    return [
        *sensitivity.audit(mechanism, ratings, data, key=keys[0], num_steps=num_steps, num_neighbours=num_neighbours),
        *post_processing.audit(mechanism, ratings, data, key=keys[1], num_steps=num_steps),
        *sampler.audit(mechanism, ratings, data, key=keys[2], num_steps=num_steps),
        *density.audit(mechanism, ratings, data, key=keys[3], num_steps=num_steps),
        *enumeration.audit(mechanism, ratings, data, key=keys[4], num_steps=num_steps),
    ]


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
