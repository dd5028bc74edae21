"""Online matrix factorisation as paper 002 has it, without privacy; a step is an epoch.

Ratings come one after the other. Both vectors of a rating move from their old values,
p ← p + η_t(e q − λp) and q ← q + η_t(e p − λq), e = r − p·q; the sign of (5) is corrected. A rating
whose loss is above a threshold ε is skipped. That is no privacy: the result is a function of
ratings, order, start and threshold.

A schedule (`ordered.schedule`) is made on the host once and used in every epoch. Like the layout it
stays with the curator. It names where ratings are stored, not values, so neighbours of the data run
in the same program. Without a schedule each epoch has an order of its own, which its coins draw on
the device; such a mechanism is made of settings alone.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting import guards
from accounting.guarantee import NO_NOISE, Guarantee, no_guarantee
from dpmf_jax.errors import UsageError
from dpmf_jax.kernels import epoch
from dpmf_jax.layout import Layout, ordered
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.sketch import means as preprocessing
from dpmf_jax.mechanisms.sketch.means import Means
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, Release, State

Convention = Literal["4.3", "3.2"]
Query = Literal["mean", "median"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers. Paper 002's letters in brackets.

    rank: [d].
    learning_rate: [η]; epoch t = 0, 1, … has η/(1 + b·t/T).
    decay: [b].
    num_epochs: [T].
    regularization: [λ], of both vectors of a rating at its update.
    initial_scale: standard deviation of a coordinate at the start (the paper does not say).
    threshold: [ε] of the loss; None: all is learnt from.
    convention: what is skipped; "4.3": e² > ε, "3.2": e²/2 > ε.
    preprocess: subtract the global, user and item means of the ratings; else `center` alone.
    center: a constant.
    depth: [k], rows of the sketch (sketch only); 1 is feature hashing.
    gain: [γ], how many times smaller the sketch is than all vectors (sketch only).
    query: how vectors are read (sketch only).
    """

    rank: int = 16
    learning_rate: float = 0.02
    decay: float = 0.0
    num_epochs: int = 20
    regularization: float = 0.02
    initial_scale: float = 0.1
    threshold: float | None = None
    convention: Convention = "4.3"
    preprocess: bool = True
    center: float = 0.0
    depth: int = 4
    gain: float = 1.0
    query: Query = "mean"

    def __post_init__(self) -> None:
        guards.fields(self, guards.count, "rank", "num_epochs", "depth")
        guards.fields(self, guards.positive, "learning_rate", "initial_scale", "gain")
        guards.fields(self, guards.nonnegative, "decay", "regularization")
        guards.fields(self, guards.from_zero, optional=("threshold",))
        guards.finite("center", self.center)
        if self.convention not in ("4.3", "3.2"):
            raise ValueError(f'convention must be "4.3" or "3.2"; got {self.convention!r}')
        if self.query not in ("mean", "median"):
            raise ValueError(f'query must be "mean" or "median"; got {self.query!r}')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    """What the parts share; threshold: ε as in the config, ∞ for none."""

    learning_rate: jax.Array
    decay: jax.Array
    num_epochs: jax.Array
    regularization: jax.Array
    initial_scale: jax.Array
    threshold: jax.Array
    center: jax.Array
    rank: int = dataclasses.field(metadata={"static": True})
    convention: Convention = dataclasses.field(metadata={"static": True})
    preprocess: bool = dataclasses.field(metadata={"static": True})
    depth: int = dataclasses.field(metadata={"static": True})
    gain: float = dataclasses.field(metadata={"static": True})
    query: Query = dataclasses.field(metadata={"static": True})


class Public(NamedTuple):
    """The public part of the state, by the protocol's cut; it is not for the public.

    users: float32[users, rank], p.
    items: float32[items, rank], q.
    means: what is subtracted from ratings.
    """

    users: jax.Array
    items: jax.Array
    means: Means

    @property
    def user_factors(self) -> jax.Array:
        return self.means.with_users(self.users)

    @property
    def item_factors(self) -> jax.Array:
        return self.means.with_items(self.items)

    @property
    def center(self) -> jax.Array:
        return self.means.center


def regular(config: Config, schedule: ordered.Schedule | None = None) -> Mechanism:
    """Factors by exact sequential SGD over stored vectors: the paper's baseline.

    Info has the mean of e² over the ratings, each before its own update, and as clipped_fraction
    the share that was skipped. `depth`, `gain` and `query` are not read.

    Guarantee: none; releases nothing.

    Args:
      schedule: without conflicts, for the layout's kind; batches of one are the fastest on a CPU.
        None: one by one, in an order that is drawn anew in each epoch (`ordered.shuffled`, the
        step's coins are the key).

    Raises: UsageError for a schedule with a user or an item twice in a batch.
    """
    if schedule is not None:
        _refuse_conflicts(schedule)
    return _mechanism(config, schedule, "online-regular")


def mini_batch(config: Config, schedule: ordered.Schedule, *, size: int = 256) -> Mechanism:
    """Factors by SGD in batches of `size` ratings, in the schedule's order.

    The ratings of a batch share the vectors from before it, and their updates are summed, so this
    is not the result of `regular`.

    Guarantee: none; releases nothing.

    Raises: UsageError for a size below 1.
    """
    return _mechanism(config, mini_batches(schedule, size), "online-mini-batch")


def mini_batches(schedule: ordered.Schedule, size: int) -> ordered.Schedule:
    """A schedule in its order, `size` ratings in each batch, whether or not they conflict. Host.

    Raises: UsageError for a size below 1.
    """
    if size < 1:
        raise UsageError(f"batches of {size} ratings", fix="size must be at least 1")
    used = np.asarray(schedule.used)
    missing = -int(used.sum()) % size

    def cut(part: Any) -> np.ndarray:
        part = np.asarray(part)
        filler = part[~used][:1] if part[~used].size else np.zeros(1, part.dtype)
        return np.concatenate([part[used], np.repeat(filler, missing)]).reshape(-1, size)

    cut_parts = [cut(part) for part in schedule[:3]]
    kept = np.concatenate([np.ones(int(used.sum()), bool), np.zeros(missing, bool)])
    return ordered.Schedule(*cut_parts, kept.reshape(-1, size))


def _refuse_conflicts(schedule: ordered.Schedule) -> None:
    used = np.asarray(schedule.used)
    if used.shape[1] == 1:
        return
    padding = -1 - np.arange(used.shape[1])
    for name in ("user", "item"):
        rows = np.sort(np.where(used, np.asarray(getattr(schedule, name)), padding), axis=1)
        if (rows[:, 1:] == rows[:, :-1]).any():
            raise UsageError(
                f"the schedule has the same {name} twice in a batch",
                fix=(
                    "use `ordered.schedule` without cells, or `mini_batch`, which gives another"
                    " result"
                ),
            )


def make_params(config: Config) -> Params:
    f32 = jnp.float32
    return Params(
        learning_rate=f32(config.learning_rate),
        decay=f32(config.decay),
        num_epochs=f32(config.num_epochs),
        regularization=f32(config.regularization),
        initial_scale=f32(config.initial_scale),
        threshold=f32(math.inf if config.threshold is None else config.threshold),
        center=f32(config.center),
        rank=config.rank,
        convention=config.convention,
        preprocess=config.preprocess,
        depth=config.depth,
        gain=config.gain,
        query=config.query,
    )


def rule(params: Params, step: jax.Array) -> epoch.Rule:
    """The rule of an update in epoch `step`."""
    rate = params.learning_rate / (1 + params.decay * step / params.num_epochs)
    return epoch.Rule(
        rate,
        params.regularization,
        params.threshold if params.convention == "4.3" else 2 * params.threshold,
    )


def first_means(params: Params, data: Layout) -> Means:
    """The means before the first epoch, which look at no rating."""
    if not params.preprocess:
        return Means(params.center)
    return Means(jnp.float32(0), jnp.zeros(data.num_users), jnp.zeros(data.num_items))


def means(params: Params, state: State, data: Layout) -> Means:
    """What this epoch subtracts; with preprocessing, means that the first epoch takes of ratings.

    Raises: UsageError for ratings over several devices, whose order of storing is not the
      schedule's.
    """
    if data.num_devices > 1:
        raise UsageError(
            f"sequential SGD cannot be split, and the ratings lie on {data.num_devices} devices",
            fix="lay them out on one (num_devices=1)",
        )
    if not params.preprocess:
        return state.public.means
    return jax.lax.cond(state.step == 0, preprocessing.means, lambda data: state.public.means, data)


def coins(schedule: ordered.Schedule | None) -> Partial:
    """The coins of a mechanism: none where the order is given, else the key of an epoch's order."""
    return Partial(_order_key if schedule is None else claims.no_coins)


def in_order(
    schedule: ordered.Schedule | None, data: Layout, coins: jax.Array | None
) -> ordered.Schedule:
    """The schedule, or all ratings one by one in the order of the coins."""
    if schedule is not None:
        return schedule
    assert coins is not None
    return ordered.shuffled(data, coins)


def _order_key(key: jax.Array) -> jax.Array:
    return key


def info(seen: epoch.Seen) -> Info:
    """The mean of e², each rating before its own update, and the share that was skipped."""
    count = jnp.maximum(seen.rated, 1)
    return Info(seen.squared / count, 1 - seen.learnt / count)


def _mechanism(config: Config, schedule: ordered.Schedule | None, name: str) -> Mechanism:
    params = make_params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=coins(schedule),
        query=Partial(_query, params, jax.tree.map(jnp.asarray, schedule)),
        noise=noise.none(),
        update=Partial(_update),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params, Named(name)),
    )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Named:
    name: str


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
    del previous  # nothing public is taken over: the means are of the ratings, or a constant
    keys = jax.random.split(key)
    users, items = (
        params.initial_scale * jax.random.normal(k, (rows, params.rank), jnp.float32)
        for k, rows in zip(keys, (data.num_users, data.num_items), strict=True)
    )
    return State(Public(users, items, first_means(params, data)), None, jnp.int32(0))


def _query(
    params: Params,
    schedule: ordered.Schedule | None,
    state: State,
    data: Layout,
    coins: jax.Array | None,
) -> tuple[Public, Info]:
    """A whole epoch: the statistics are the factors after it."""
    now = means(params, state, data)
    schedule = in_order(schedule, data, coins)
    offset = now.at(schedule.user, schedule.item)
    users, items, seen = epoch.dense(
        state.public.users, state.public.items, schedule, data, rule(params, state.step), offset
    )
    return Public(users, items, now), info(seen)


def _update(state: State, response: Public, data: Layout) -> State:
    del data
    return state._replace(public=response)


def _release(state: State) -> Release:
    del state  # a baseline
    return Release()


def _guarantee(params: Params, name: Named, num_steps: int) -> Guarantee:
    reason = NO_NOISE
    if math.isfinite(threshold := float(params.threshold)):
        reason = (
            f"ε here is a threshold of the loss (here {threshold:g}), not a privacy parameter:"
            f" {reason}"
        )
    return no_guarantee(
        mechanism=name.name, num_steps=num_steps, released=(), unit="rating presence", reason=reason
    )
