"""The declarations of paper 003's mechanisms for an untrusted recommender."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmf_jax.errors import UsageError
from dpmf_jax.mechanisms.objective.spec import LEARNING_RATE, PASSES, RANK, REGULARIZATION
from dpmf_jax.mechanisms.spec import (
    FEW_STEPS,
    SOUND_EPSILON,
    FactorFlags,
    Settings,
    Spec,
    Trial,
    check_steps,
    config_values,
    given_or_default,
    public_center,
    without_noise,
)

if TYPE_CHECKING:
    from dpmf_jax.data.ratings import Ratings
    from dpmf_jax.protocol import Phase

_SOUND = ("clip_norm", "rounding_step", "change", "honest_shares")
EPSILON = 0.1  # the paper's, of each iteration
DYNAMIC_ITERATIONS = 10_000
JOIN, LEAVE, PARTICIPANTS = 0.005, 0.01, 1_000
USER_ITERATIONS, REACH, MOST_NOISE, USER_RATE = 20, 4.0, 0.3, 0.01
LISTED = 20  # items of the user whose bytes are counted, as in the paper


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crowd(FactorFlags):
    """Settings of a crowd and its recommender."""

    regularization: float | None = None
    """Weight of the items' squared norms, mu."""
    user_regularization: float | None = None
    """Weight of the users' squared norms, lambda."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Iterations(Crowd):
    """Settings of iterations, in which users may come and go."""

    steps: int | None = None
    """Number of iterations, fixed up front."""
    learning_rate: float | None = None
    """Step size; of federated-user that of the items, along the mean message."""
    dynamic: bool = False
    """Users come and go, and at most --participants take part in an iteration."""
    join: float | None = None
    """With --dynamic: probability with which an absent user comes back before an iteration."""
    leave: float | None = None
    """With --dynamic: probability with which a present user goes before an iteration."""
    participants: int | None = None
    """With --dynamic: the most users who take part in an iteration."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Messages(Crowd):
    """Settings of messages that are clipped whole, in integers."""

    clip_norm: float = 1.0
    """Bound on the L1 norm of all that a user sends in an iteration."""
    rounding_step: float | None = None
    """Messages are rounded towards zero to multiples of this; the noise has the same grid."""
    honest_shares: int | None = None
    """How many other users surely add their share of the noise and keep it secret. By default
    nobody who takes part may drop out or collude.
    """
    change: Literal["replace", "remove"] = "replace"
    """What is hidden of a user: which data they have, or whether they take part."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published(Iterations):
    """Settings of the crowd as published."""

    epsilon: float | None = None
    """Epsilon of each iteration, which the paper states for all; the total is --steps times it."""
    prior_count: int | None = None
    """Public M: items minimise the sum of squares plus M mu times their squared norm."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerUser(Messages, Iterations):
    """Settings of the crowd with whole messages clipped."""

    user_learning_rate: float | None = None
    """Step size of the users' own steps, which cost no privacy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRound(Messages):
    """Settings of one round of clipped statistics."""

    prior_count: int | None = None
    """Public M: items minimise the sum of squares plus M mu times their squared norm."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings of a mechanism where the flags say nothing."""

    steps: int
    rank: int
    epsilon: float
    regularization: float = REGULARIZATION
    user_regularization: float = REGULARIZATION
    learning_rate: float | None = LEARNING_RATE
    user_learning_rate: float = LEARNING_RATE
    prior_count: int = 1  # equation (9) has no M


def defaults(mechanism: str, *, dynamic: bool) -> Defaults:
    """Defaults: the paper's own of what it published; those of the sound ones were searched.

    The search was on generated data (DEFAULTS.md).
    """
    iterations = DYNAMIC_ITERATIONS if dynamic else PASSES
    return {
        "federated": Defaults(steps=iterations, rank=RANK, epsilon=EPSILON),
        "federated-user": Defaults(
            steps=USER_ITERATIONS, rank=1, epsilon=SOUND_EPSILON, user_learning_rate=USER_RATE
        ),
        "federated-statistics": Defaults(
            steps=1, rank=1, epsilon=SOUND_EPSILON, user_regularization=2.0
        ),
    }[mechanism]


def settings(name: str, flags: Any, ratings: Ratings, public: Any) -> Settings:
    """See `Spec.settings`."""
    del public  # there are none
    published, dynamic = name == "federated", getattr(flags, "dynamic", False)
    usual = defaults(name, dynamic=dynamic)
    low, high = ratings.rating_range
    population = None if name == "federated-statistics" else _population(flags, ratings.num_users)

    def said(setting: str) -> Any:
        return given_or_default(flags, usual, setting)

    steps = (
        usual.steps if name == "federated-statistics" else check_steps(said("steps"), usual.steps)
    )
    middle = 0.0 if published else (low + high) / 2
    made: Settings = {
        "steps": steps,
        "rating_range": list(ratings.rating_range),
        "center": middle if flags.center is None else public_center(flags.center, name),
        **{
            setting: said(setting)
            for setting in ("rank", "epsilon", "regularization", "user_regularization")
        },
        "population": population,
    }
    if published:
        return made | {"learning_rate": said("learning_rate"), "prior_count": said("prior_count")}
    made |= {sound: getattr(flags, sound) for sound in _SOUND} | {"num_iterations": steps}
    taking_part = ratings.num_users if population is None else population["at_most"]
    if flags.honest_shares is None:  # whoever takes part, but for the protected one
        made["honest_shares"] = max(1, taking_part - 1)
    if flags.rounding_step is None:
        made["rounding_step"] = rounding_step(made, taking_part)
    if name == "federated-user":
        made["learning_rate"] = said("user_learning_rate")
        made["item_learning_rate"] = flags.learning_rate
        if flags.learning_rate is None:
            made["item_learning_rate"] = item_learning_rate(made, ratings.num_items, taking_part)
    else:
        made["prior_count"] = prior_count(made) if flags.prior_count is None else flags.prior_count
    return made


def noise_scale(settings: Mapping[str, Any]) -> float:
    """b of the noise on a sum, in every iteration."""
    from accounting import iterations

    return iterations.iterations_scale(
        noise="laplace",
        epsilon=settings["epsilon"],
        clip_norm=settings["clip_norm"],
        num_iterations=settings["steps"],
        change=settings["change"],
    )


def rounding_step(settings: Mapping[str, Any], taking_part: int) -> float:
    """h where the flags say none: a power of two that leaves room in 32 bits.

    There is room for 2,048 scales of noise, and for a sum of whole messages if all users spent
    theirs on one entry.
    """
    least = max(noise_scale(settings) * 2.0**-20, settings["clip_norm"] * taking_part * 2.0**-31)
    return 2.0 ** math.ceil(math.log2(least))


def item_learning_rate(settings: Mapping[str, Any], num_items: int, taking_part: int) -> float:
    """Of V's steps along the mean message where the flags say none, from public numbers alone.

    A message has an L1 norm of C at most, over items and factors: in T steps of this size an entry
    of V moves by `REACH` on the average if all users agree; or by less, so that T steps' noise has
    a standard deviation of `MOST_NOISE` in an entry. The constants were searched on generated data
    (experiments/DEFAULTS.md).
    """
    steps, clip = settings["steps"], settings["clip_norm"]
    wanted = REACH * num_items * settings["rank"] / (steps * clip)
    return min(wanted, MOST_NOISE * taking_part / (noise_scale(settings) * math.sqrt(2 * steps)))


def prior_count(settings: Mapping[str, Any]) -> int:
    """M of `federated-statistics`, from public numbers alone.

    M·μ is 2(1 + s), as in `objective.spec.prior_count`, but s is the standard deviation of the
    noise in messages of L1 norm C: √2·b/C, b the scale of its noise.
    """
    if not settings["regularization"] > 0:
        raise ValueError(
            f"regularization must be positive and finite; got {settings['regularization']}"
        )
    spread = math.sqrt(2) * noise_scale(settings) / settings["clip_norm"]
    return max(1, round(2 * (1 + spread) / settings["regularization"]))


def traffic(settings: Mapping[str, Any], num_users: int, num_items: int) -> dict[str, Any]:
    """Bytes that the protocol would send in an iteration, by sender and receiver.

    They follow from public sizes alone.

    Of a user who lists 20 items, the paper's example, where those are the rated ones; of the whole
    catalogue in the sound variants, in which every user lists it, so that nobody sees who rated
    what. `federated-statistics` sends a triangle and a vector in place of a row of d numbers, and
    needs no item factors.
    """
    import jax

    from dpmf_jax.mechanisms.federated import messages as sent

    published, dynamic = settings["mechanism"] == "federated", settings["population"] is not None
    listed, rank = (min(LISTED, num_items) if published else num_items), settings["rank"]
    width = rank * (rank + 3) // 2 if settings["mechanism"] == "federated-statistics" else rank

    def array(*shape: int, dtype: Any = np.uint32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    ask = sent.Ask(array(listed, dtype=np.int32))
    request = sent.Request(
        pads=array(listed, width),
        item_factors=None if width > rank else array(listed, rank, dtype=np.float32),
        pieces=array(listed, rank) if published and dynamic else None,
        factor=array(listed, rank, dtype=np.float32) if published else None,
        num_shares=array(listed, dtype=np.int32) if published else None,
    )
    upload = sent.Upload(array(listed, dtype=np.int32), array(listed, width))
    total = sent.Total(
        array(num_items, width), array(num_items, dtype=bool), array(num_users, dtype=bool)
    )
    each = sent.Messages(ask, request, upload, total)
    counted = {
        f"{sender} to {receiver}": count for (sender, receiver), count in sent.traffic(each).items()
    }
    return {
        "per_iteration": counted,
        "items_listed_by_a_user": listed,
        "iterations": settings["steps"],
    }


def _population(flags: Iterations, num_users: int) -> dict[str, Any] | None:
    """Settings of `crowd.Population`; None where everybody takes part in every iteration."""
    if not flags.dynamic:
        for name in ("join", "leave", "participants"):
            if getattr(flags, name) is not None:
                raise UsageError(
                    f"--{name} goes with --dynamic", fix=f"--dynamic, or leave out --{name}"
                )
        return None
    most = (
        min(PARTICIPANTS, max(1, num_users // 10))
        if flags.participants is None
        else flags.participants
    )
    return {
        "join": JOIN if flags.join is None else flags.join,
        "leave": LEAVE if flags.leave is None else flags.leave,
        "at_most": most,
    }


def phases(settings: Mapping[str, Any], public: Any) -> tuple[Phase, ...]:
    """See `Spec.phases`."""
    from dpmf_jax.mechanisms.federated import published as federated

    del public
    values = config_values(federated.Config, settings)
    crowd = settings["population"]
    values["population"] = None if crowd is None else federated.Population(**crowd)
    make = {
        "federated": federated.mechanism,
        "federated-user": federated.per_user,
        "federated-statistics": federated.statistics,
    }[settings["mechanism"]]
    return ((make(federated.Config(**values)), settings["steps"]),)


_FEW = {"rank": 5, "steps": 4}
_FIRST = {"sensitivity": 25, "privacy loss": 2, "membership": 25, "one run": 25, "divergence": 25}
_PUBLISHED = (
    Trial(
        "003 as published: S2, federated",
        "ε = 0.1 in each of 100 iterations, which the paper states for all of them; rank 50",
        {"steps": 100},
        small=_FEW,
        short=_FIRST,
    ),
    Trial(
        "003 as published: S3, federated, users come and go",
        "ε = 0.1; 100 of the paper's 10,000 iterations",
        {"dynamic": True, "steps": 100},
        small=_FEW,
        short=_FIRST,
    ),
)
_PER_USER = Trial(
    "003 sound: federated, per user",
    "defaults",
    small=FEW_STEPS,
    less={
        "privacy loss": {"num_neighbours": 8, "num_runs": 64, "deltas": (1e-2,)}
    },  # and its largest loss
)
_STATISTICS = Trial("003 sound: federated, statistics", "defaults")
_SHARED: dict[str, Any] = {
    "paper": "003",
    "settings": settings,
    "phases": phases,
    "control": without_noise,
    "access": "sums",
    "traffic": traffic,
}
_MIDDLE = "middle of the rating range"
_COMMON: dict[str, Any] = {"regularization": REGULARIZATION, "user_regularization": REGULARIZATION}
_CROWD: dict[str, Any] = {
    "join": JOIN,
    "leave": LEAVE,
    "participants": f"a tenth of the users, {PARTICIPANTS} at most",
}
_WHOLE: dict[str, Any] = {
    "epsilon": SOUND_EPSILON,
    "rank": 1,
    "center": _MIDDLE,
    "rounding_step": "a power of two that keeps sums within 32 bits",
    "honest_shares": "all others who take part",
}
SPECS = (
    Spec(
        name="federated",
        flags=Published,
        unit="rating value",
        trials=_PUBLISHED,
        defaults={
            **_COMMON,
            **_CROWD,
            "epsilon": EPSILON,
            "rank": RANK,
            "center": 0.0,
            "learning_rate": LEARNING_RATE,
            "steps": f"{PASSES}; {DYNAMIC_ITERATIONS} with --dynamic",
            "prior_count": 1,
        },
        **_SHARED,
    ),
    Spec(
        name="federated-user",
        flags=PerUser,
        unit="user",
        trials=(_PER_USER,),
        defaults={
            **_COMMON,
            **_CROWD,
            **_WHOLE,
            "steps": USER_ITERATIONS,
            "user_learning_rate": USER_RATE,
            "learning_rate": "from public sizes",
        },
        **_SHARED,
    ),
    Spec(
        name="federated-statistics",
        flags=OneRound,
        unit="user",
        trials=(_STATISTICS,),
        defaults={
            **_COMMON,
            **_WHOLE,
            "user_regularization": 2.0,
            "prior_count": "by the size of the noise",
        },
        **_SHARED,
    ),
)
