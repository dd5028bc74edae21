"""How near the audits of a whole release come to ε on mechanisms as they ship, beside the privacy
loss, which sees every response.

The settings are those of a fit by name at that ε, on generated ratings. An attacker sees what is
released and nothing else; whoever sees the transcript as well is the audit `privacy loss`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.bench import generated

SIZE = (200, 100, 4_000)  # users, items, ratings
EPSILONS, DELTA = (1.0, 4.0, 10.0), 1e-5
MECHANISMS = ("user-means", "objective-statistics", "dpsgd")
FAMILIES = ("privacy loss", "membership", "one run")
TRANSCRIPTS = 1_000  # of the privacy loss, in each direction


def rows() -> Iterator[dict[str, Any]]:
    """Rows of {mechanism, unit, epsilon, audit, claimed, bound, verdict}.

    claimed: the ε that the attack is held to; of a user, that of all of the user's ratings.
    bound: a lower bound on ε at δ = 1e-5, right with the confidence of the finding (95%, and 97.5%
      for the privacy loss).
    """
    for name in MECHANISMS:
        for epsilon in EPSILONS:
            yield from _rows(name, epsilon)


def _rows(name: str, epsilon: float) -> Iterator[dict[str, Any]]:
    import audits
    from dpmf_jax.noise import keys
    from dpmf_jax.training import resolve

    spec, ratings = resolve.spec_named(name), generated.ratings(SIZE)
    flags = resolve.flags_of(spec, {"epsilon": epsilon, "delta": DELTA})
    *earlier, (mechanism, num_steps) = resolve.phases_and_settings(spec, flags, ratings)[0]
    found = audits.audit(
        mechanism,
        ratings,
        key=keys.from_seed(0),
        num_steps=num_steps,
        earlier=earlier,
        delta=DELTA,
        num_runs=TRANSCRIPTS,
        only=FAMILIES,
    )
    for finding in found:
        if finding.lower is not None:
            yield {
                "mechanism": name,
                "unit": mechanism.guarantee(num_steps).unit,
                "epsilon": epsilon,
                "audit": finding.audit,
                "claimed": finding.claimed,
                "bound": finding.lower,
                "verdict": finding.verdict,
            }
