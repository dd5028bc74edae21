"""Local differential privacy by the whole gradient, which paper 004 compares with.

Every user sends the own gradient of V in each of k rounds: all items × rank entries. Each item's
row is protected at ε/(k·m) by Laplace noise of its own (Hua, Xia and Zhong 2015, per user). The
server averages over users and descends.

`local.gd` sends one bit of one entry instead. An entry of the mean has a variance of
8(d·c·m·k/ε)²/n here and of about m·d·(2c·k/ε)²/n there, which is 2·m·d times less. Messages are
held whole, float32[users, items, rank].
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting import guards
from accounting.guarantee import Guarantee, priced
from accounting.loss import Pure
from accounting.relation import USER_REPLACED
from accounting.status import REAL_NUMBERS
from accounting.words import FLOAT32_LAPLACE
from dpmf_jax import layout
from dpmf_jax.errors import UsageError
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax.mechanisms.local.guarantee import epsilon_spent
from dpmf_jax.noise import laws as noise
from dpmf_jax.protocol import Info, Mechanism, State

LARGEST = 1 << 31  # bytes of one round's reports; a run holds a few such arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public. Paper 004's letters in brackets.

    epsilon: of all reports of one user together [ε].
    num_rounds: [k].
    num_items: size of the catalogue, rated or not, over which a round's ε/k is split [m].
    rank: [d].
    learning_rate: γ of the first round; round t has γ/t.
    regularization: [λ], of both sides.
    center: a public constant, subtracted from ratings.
    clip: c > 0; entries are clipped to [-c, c].
    """

    epsilon: float
    num_rounds: int
    num_items: int
    rank: int = 15
    learning_rate: float = 1.0
    regularization: float = 1e-8
    center: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        _descent(self)  # refuses what it shares with `local`
        guards.count("num_items", self.num_items)
        if not scale(self) < math.inf:
            raise ValueError(
                f"epsilon {self.epsilon} is too small: no scale of its noise is a finite float32"
            )


def scale(config: Config) -> float:
    """b = 2·d·c/(ε/(k·m)) of every entry's Laplace noise, a float32 and never below it.

    Any change to a user's ratings moves each of the d entries of an item's row by at most 2c, so
    the row by 2·d·c in the L1 norm; each row has ε/(k·m).
    """
    exact = (
        2
        * Fraction(float(np.float32(config.clip)))
        * config.rank
        * config.num_rounds
        * config.num_items
    )
    exact /= Fraction(config.epsilon)
    if exact >= Fraction(float(np.finfo(np.float32).max)):
        return math.inf
    found = np.float32(float(exact))
    return float(
        found if Fraction(float(found)) >= exact else np.nextafter(found, np.float32(math.inf))
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    epsilon: float | jax.Array  # read on the host alone, so a float
    clip: jax.Array
    num_rounds: int = dataclasses.field(metadata={"static": True})
    num_items: int = dataclasses.field(metadata={"static": True})
    rank: int = dataclasses.field(metadata={"static": True})


def mechanism(config: Config) -> Mechanism:
    """Item factors by every user's whole noisy gradient of V, each item's row at ε/(k·m).

    Guarantee: pure ε per user in the local model, for any change to all of a user's ratings and
      items; proved for real-number noise. A round moves m rows by at most 2·d·c each in the L1
      norm, against Laplace noise of scale 2·d·c·k·m/ε. That costs ε/k, and k rounds add up. Taking
      part is visible.
    Departs from the papers: only the entries of the gradient are clipped. Paper 004's slides leave
      the order of the two updates open; it is that of its algorithm 1.

    The mechanism's `init` raises UsageError where a round's messages take more than `LARGEST`
    bytes, and ValueError where the data have another number of items than the noise is made for.
    """
    params = Params(
        epsilon=config.epsilon,
        clip=jnp.float32(config.clip),
        num_rounds=config.num_rounds,
        num_items=config.num_items,
        rank=config.rank,
    )
    exact = local.non_private(_descent(config))
    return exact._replace(
        init=Partial(_init, params, exact.init),
        query=Partial(_query, params),
        noise=noise.laplace(scale(config)),
        update=Partial(_update, exact.update),
        guarantee=Partial(_guarantee, params),
    )


def _descent(config: Config) -> local.Config:
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    del shared["num_items"]
    return local.Config(**shared)


def _init(params: Params, init: Partial, key: jax.Array, data: Layout, previous: Any) -> State:
    if data.num_items != params.num_items:
        raise ValueError(
            f"num_items must be {data.num_items}, the items of the data; got {params.num_items}"
        )
    size = 4 * data.num_users * data.num_items * params.rank
    if not size <= LARGEST:
        raise UsageError(
            f"the messages of one round, users x items x rank numbers, take {size / 2**30:.1f} GiB;"
            f" at most {LARGEST / 2**30:.0f} GiB are held",
            fix="fewer users or items, a lower rank, or local.gd, whose users say one bit",
        )
    return init(key, data, previous)


class _Known(NamedTuple):
    """Of one item, public: its factors, its centre, its index."""

    factors: jax.Array
    center: jax.Array
    index: jax.Array


def _residuals(
    num_items: int, own: jax.Array, known: _Known, values: jax.Array, present: jax.Array
) -> jax.Array:
    """One user: e at the rated items and 0 at the others, float32[items]."""
    residual = present * (values - known.center - known.factors @ own)
    return jnp.zeros(num_items).at[known.index].add(residual, mode="drop")


def _query(params: Params, state: State, data: Layout, coins: jax.Array) -> tuple[jax.Array, Info]:
    """Every user's own clipped gradient of V, float32[users, items, rank]; 0 where not rated."""
    public, users, clip = state.public, state.private.user_factors, params.clip
    num_items = data.num_items
    center = jnp.broadcast_to(public.center, (num_items,))
    known = _Known(layout.pad_rank(public.item_factors), center, jnp.arange(num_items))
    residual = layout.sum_by_user(
        data, Partial(_residuals, num_items), layout.pad_rank(users), known
    )
    gradient = -2 * residual[:, :, None] * users[:, None, :]
    rated = data.num_ratings * params.rank
    info = Info(jnp.sum(residual**2) / data.num_ratings, jnp.sum(jnp.abs(gradient) > clip) / rated)
    return jnp.clip(gradient, -clip, clip), info


def _update(exact: Partial, state: State, response: jax.Array, data: Layout) -> State:
    """As if the mean of all messages were the mean gradient."""
    return exact(state, jnp.mean(response, axis=0), data)


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    num_rounds, rank = params.num_rounds, params.rank
    epsilon = epsilon_spent(float(params.epsilon), num_steps, num_rounds)
    rows = params.num_items * num_rounds
    return priced(
        mechanism="local-laplace",
        losses=(Pure(epsilon=epsilon, num_rounds=num_steps),),
        delta=0.0,
        unit="user",
        relation=USER_REPLACED,
        released=(
            "item factors",
            "every message: a noisy matrix of items x rank of each user in each round",
        ),
        trust_model=(
            "local: nobody but the user sees the user's ratings; "
            "the server, and whoever reads its traffic, sees every message and may be dishonest"
        ),
        rounds_are_seen=True,
        status=REAL_NUMBERS,
        assumptions=(
            (
                f"each user sends {num_steps} messages, whatever the data; one that is sent again"
                " is the same message"
            ),
            (
                f"a row of {rank} entries clipped to [-c, c] moves by at most 2 x {rank} x c in the"
                f" L1 norm; it has 1/{rows} of what {num_rounds} rounds over {params.num_items}"
                " items cost"
            ),
            "a user's factors never leave the device, except through the messages",
            FLOAT32_LAPLACE,
            "real randomness: the generator is secure and its seed secret",
        ),
        not_covered=("taking part, and how often: who sends messages is visible",),
    )
