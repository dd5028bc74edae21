"""What the bugs of the zoo are planted in: every sound mechanism of the table, on tiny ratings.

`gaussian, published` is the one whose claim is not proved; the audits that are named for its bugs
do not refute it.
"""

import functools

import jax

from dpmf_jax import layout, parts
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.federated.crowd import Population
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.sampled import langevin
from dpmf_jax.mechanisms.sketch import dpsgd as sketch_dpsgd
from dpmf_jax.protocol import Mechanism
from dpmf_jax.training import fit as fitting
from experiments.audit import suite
from tests.cases.ratings import share
from tests.zoo import joint as als

USERS, ITEMS, RANGE, STEPS = 12, 7, (1.0, 5.0), 6


RATINGS = share(0.6, (USERS, ITEMS))
DATA = layout.make(RATINGS, kind="dense", num_devices=1)

# The clips lie below what they bound, so that each Δ is reached.
GAUSSIAN = {
    "rating_range": RANGE,
    "noise_multiplier": 2.0,
    "rank": 3,
    "learning_rate": 0.01,
    "clip_norm": 0.5,
}
SAMPLED = {
    "rating_range": RANGE,
    "num_steps": STEPS,
    "sampling_rate": 0.3,
    "noise_multiplier": 1.0,
    "rank": 3,
    "clip_norm": 0.3,
}
OBJECTIVE = {
    "epsilon": 1.0,
    "rating_range": RANGE,
    "prior_count": 200,
    "rank": 3,
    "num_passes": 4,
    "center": 3.0,
}
FEDERATED = {"epsilon": 2.0, "rating_range": RANGE, "rank": 3, "center": 3.0, "change": "remove"}
CROWD = Population(join=0.9, leave=0.1, at_most=9)
LOCAL = {"epsilon": 3.0, "num_rounds": STEPS, "rank": 3, "center": 3.0}


def joint(**change):
    return gaussian.joint_noise(gaussian.Config(**({**GAUSSIAN, "residual_clip": 2.0} | change)))


def public_items(**change):
    presence = {"relation": "rating presence", "residual_clip": 1.0}
    return gaussian.public_items(gaussian.Config(**(GAUSSIAN | presence | change)))


def public_users(**change):
    return objective.public_users(objective.Config(**({**OBJECTIVE, "noise": "laplace"} | change)))


OWN = {  # at settings of their own
    "gaussian, published": lambda: gaussian.mechanism(gaussian.Config(**GAUSSIAN)),
    "gaussian-joint-noise": joint,
    "gaussian-public-items": public_items,
    "langevin": lambda: langevin.dp(langevin.Config(**SAMPLED)),
    "dpsgd": lambda: langevin.dpsgd(langevin.Config(**SAMPLED)),
    "sketch-dpsgd": lambda: sketch_dpsgd.mechanism(sketch_dpsgd.Config(**SAMPLED)),
    "objective-public-users": public_users,
    "objective-statistics": lambda: objective.statistics(
        objective.Config(**OBJECTIVE, noise="gaussian", delta=1e-5),
    ),
    "federated-user": lambda: federated.per_user(
        federated.Config(**FEDERATED, num_iterations=STEPS)
    ),
    "federated-user-dynamic": lambda: federated.per_user(
        federated.Config(**FEDERATED, num_iterations=STEPS, population=CROWD, honest_shares=4)
    ),
    "federated-statistics": lambda: federated.statistics(federated.Config(**FEDERATED)),
    "local-gd": lambda: local.gd(local.Config(**LOCAL)),
    "local-gd-dr": lambda: local.gd_dr(local.Config(**LOCAL, num_projected=4)),
    "noisy-item-means": lambda: noisy_means.mechanism(
        noisy_means.Config(rating_range=RANGE, noise_multiplier=2.0)
    ),
    "als-counts": lambda: als.phase(0),
    "als-means": lambda: als.phase(1),
    "als-factors": lambda: als.phase(2),
}
# The phases of als take as many steps as they have prices for.
FEWER_STEPS = {
    **dict.fromkeys(("objective-public-users", "objective-statistics", "federated-statistics"), 1),
    "als-counts": 1,
    "als-means": 2,
    "als-factors": 3,
}


def _at_trial(entry: suite.Entry) -> tuple[Mechanism, int]:
    """The last phase of a mechanism as `dpmf audit --all` tries it when it is to be short."""
    phases, _ = suite.phases_of(entry, RATINGS, small=True)
    return phases[-1]


PUBLISHED = "as published"  # in the label of a claim that is a paper's own and not proved
# Sound mechanisms of the table, but for those that `OWN` has, under their name or a longer one.
TRIED = {
    entry.mechanism: entry
    for entry in reversed(suite.ENTRIES)
    if PUBLISHED not in entry.label
    and not any(f"{name}-".startswith(f"{entry.mechanism}-") for name in OWN)
}
SOUND = OWN | {name: lambda entry=entry: _at_trial(entry)[0] for name, entry in TRIED.items()}


@functools.cache
def sound(name):
    return parts.as_pytree(SOUND[name]())


def steps(name: str) -> int:
    if name in TRIED:
        return _at_trial(TRIED[name])[1]
    return FEWER_STEPS.get(name, STEPS)


def seed_of(key) -> int:
    return int(jax.random.bits(key))


def fit(ratings, folder, key, *, mechanism=None, num_steps=5, patience=None, settings=None):
    """The sound program: the project's own, on a mechanism that hides the presence of a rating."""
    made = mechanism or public_items()
    return fitting.fit(
        ratings,
        made,
        num_steps=num_steps,
        seed=seed_of(key),
        out=folder,
        patience=patience,
        settings=settings or {"mechanism": "gaussian-public-items"},
        layout_kind="dense",
        num_devices=1,
        chunk_steps=num_steps,
    )
