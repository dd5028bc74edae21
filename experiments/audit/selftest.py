"""Do the audits work here? Two bugs planted in a sound mechanism, on generated ratings, in seconds.

The audit named for a bug must call it violated, and must not call the mechanism without it so.
Tests plant many more bugs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

SEED, STEPS = 0, 4
SIZE = (30, 20, 200, 2)  # users, items, ratings, rank


class Bug(NamedTuple):
    """A planted bug.

    Attributes:
      name: in words.
      audit: the finding that must see it.
      family: of that finding.
      plant: from the sound mechanism to the one with the bug.
    """

    name: str
    audit: str
    family: str
    plant: Callable[[Any], Any]


def _half_sample(sample: Any, key: Any, statistics: Any) -> Any:
    import jax

    drawn = sample(key, statistics)
    return jax.tree.map(lambda response, query: query + (response - query) / 2, drawn, statistics)


def _half_the_noise(mechanism: Any) -> Any:
    from jax.tree_util import Partial

    return mechanism._replace(
        noise=mechanism.noise._replace(sample=Partial(_half_sample, mechanism.noise.sample))
    )


def _larger_query(query: Any, state: Any, data: Layout, coins: Any) -> Any:
    import jax

    statistics, info = query(state, data, coins)
    return jax.tree.map(lambda leaf: 4 * leaf, statistics), info


def _larger_statistics(mechanism: Any) -> Any:
    from jax.tree_util import Partial

    return mechanism._replace(query=Partial(_larger_query, mechanism.query))


BUGS = (
    Bug("noise of half the priced scale", "noise: scale", "noise", _half_the_noise),
    Bug(
        "statistics four times as large as priced",
        "sensitivity: largest step",
        "sensitivity",
        _larger_statistics,
    ),
)


def run(report: Callable[[str], None] = lambda what: None) -> list[dict[str, Any]]:
    """A row for each bug: whether it was caught, what was measured, the sound one's verdict."""
    import audits
    from dpmf_jax.data import synthetic
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
    from dpmf_jax.noise import keys

    users, items, num, rank = SIZE
    ratings = synthetic.generate(num_users=users, num_items=items, num_ratings=num, rank=rank)
    config = gaussian.Config(
        rating_range=ratings.rating_range, noise_multiplier=2.0, rank=rank, residual_clip=1.0
    )
    sound = gaussian.joint_noise(config)
    rows = []
    for bug in BUGS:
        report(f"self-test: {bug.name}")
        planted, clean = (
            next(
                one
                for one in _findings(audits, made, ratings, keys, bug.family)
                if one.audit == bug.audit
            )
            for made in (bug.plant(sound), sound)
        )
        rows.append(
            {
                "bug": bug.name,
                "audit": bug.audit,
                "caught": planted.verdict == "violated",
                "measured": planted.measured,
                "claimed": planted.claimed,
                "sound": clean.verdict,
            }
        )
    return rows


def _findings(audits: Any, mechanism: Any, ratings: Any, keys: Any, family: str) -> list[Any]:
    return audits.audit(
        mechanism,
        ratings,
        key=keys.from_seed(SEED),
        num_steps=STEPS,
        only=(family,),
        quick=True,
        layout_kind="dense",
    )
