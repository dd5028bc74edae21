"""Local differential privacy: one coordinate, one bit (paper 004), without and with a random
projection.

V ≈ center + U Vᵀ. The server holds the item factors V. Each user holds the own ratings and the own
row of U, and says one bit a round about one entry of the own gradient (`local_user`); the server
sees these `Message`s and nothing else.

- `gd`     Private GD (algorithm 1): an entry of the gradient of V, of items × rank.
- `gd_dr`  Private GD-DR (algorithm 2): an entry of Φ times that gradient, of q × rank, lifted back
  by Φ.

As published: everybody reports in each of k rounds at ε/k, Φ is one Gaussian matrix and the lift
its pseudo-inverse. Variants with the same guarantee, by settings: `lift="transpose"`,
`fresh_projection`, `law="sign"`, `clip`, `schedule="partition"`, `user_learning_rate`. The printed
loop runs k + 1 rounds and would spend ε·(k + 1)/k; here it is k. The printed algorithm 2 updates V
inside the loop over users; here each device does it once a round.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from accounting import guards
from accounting.guarantee import Guarantee, no_guarantee
from dpmf_jax import layout
from dpmf_jax.devices import bits
from dpmf_jax.kernels import projection
from dpmf_jax.kernels.descent import unit_rows
from dpmf_jax.mechanisms.local import device as local_user
from dpmf_jax.mechanisms.local.device import Coordinate, Message
from dpmf_jax.mechanisms.local.guarantee import local_guarantee
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Info, Mechanism, Release, State

Schedule = Literal["every-round", "partition"]
Lift = Literal["pseudo-inverse", "transpose"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public. Paper 004's letters in brackets.

    epsilon: of all reports of one user together [ε]. num_rounds: [k].
    rank: [d]. learning_rate: γ of the first round; round t has γ/t. regularization: [λ], of both
      sides.
    user_learning_rate: γ of the users' own steps; None is learning_rate, as in the paper. V's
      gradient is noisy, and a mean over all users, who rated few of its items: a rate that suits
      one side suits the other badly.
    center: subtracted from ratings; a public constant.
    clip: c > 0; entries are clipped to [-c, c] and reports scaled by c. The paper has 1.
    schedule: "every-round": everybody reports in each round, at ε/k [the paper]. "partition": users
      are split into k groups at random, and each group reports in one round, with all of ε.
    num_projected: q, rows of Φ; `gd_dr` only. law: of its entries. lift: how its image comes back.
    fresh_projection: another Φ in each round, from a public seed; needs lift "transpose".
    """

    epsilon: float
    num_rounds: int
    rank: int = 15
    learning_rate: float = 1.0
    user_learning_rate: float | None = None
    regularization: float = 1e-8
    center: float = 0.0
    clip: float = 1.0
    schedule: Schedule = "every-round"
    num_projected: int | None = None
    law: projection.Law = "gaussian"
    lift: Lift = "pseudo-inverse"
    fresh_projection: bool = False

    def __post_init__(self) -> None:
        guards.fields(
            self,
            guards.positive,
            "epsilon",
            "learning_rate",
            "clip",
            optional=("user_learning_rate",),
        )
        guards.nonnegative("regularization", self.regularization)
        guards.finite("center", self.center)
        guards.fields(self, guards.count, "num_rounds", "rank", optional=("num_projected",))
        if self.fresh_projection and self.lift != "transpose":
            raise ValueError(
                'fresh_projection needs lift="transpose": a pseudo-inverse in each round costs q²'
                " times items"
            )

    @property
    def epsilon_report(self) -> float:
        """Of one report: ε/k rounded down, or ε where each user reports once."""
        if self.schedule == "partition":
            return self.epsilon
        each = self.epsilon / self.num_rounds
        return (
            each
            if Fraction(each) * self.num_rounds <= Fraction(self.epsilon)
            else math.nextafter(each, 0)
        )


class Public(NamedTuple):
    """What the server, and so everybody, knows.

    item_factors: float32[items, rank]. group: int32[users], in which round a user reports; None
    where in all. words: of Φ, None without one. gram_inverse: float32[q, q], (ΦΦᵀ)⁻¹ where the lift
    needs it. optimizer_state: of V.
    """

    item_factors: jax.Array
    center: jax.Array
    group: jax.Array | None
    words: bits.Words | None
    gram_inverse: jax.Array | None
    optimizer_state: Any


class Private(NamedTuple):
    """On the devices of the users: row u of each is user u's own. It is updated there and never
    sent.

    num_rated: float32[users], the number of own ratings.
    """

    user_factors: jax.Array
    num_rated: jax.Array
    optimizer_state: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    epsilon: float | jax.Array  # read on the host alone, so a float
    num_rounds: int | jax.Array
    gain: jax.Array
    learning_rate: jax.Array
    user_learning_rate: jax.Array
    regularization: jax.Array
    center: jax.Array
    clip: jax.Array
    rank: int = dataclasses.field(metadata={"static": True})
    schedule: Schedule = dataclasses.field(metadata={"static": True})
    num_projected: int | None = dataclasses.field(metadata={"static": True})
    law: projection.Law = dataclasses.field(metadata={"static": True})
    lift: Lift = dataclasses.field(metadata={"static": True})
    fresh_projection: bool = dataclasses.field(metadata={"static": True})


def gd(config: Config) -> Mechanism:
    """Paper 004, algorithm 1: one entry of the gradient of V, chosen uniformly among items × rank.

    Guarantee: ε-differential privacy per user, pure, in the local model: any change to all of a
      user's ratings and items; proved (lemma 1 and theorem 1). Taking part is visible.
    Departs from the paper: k rounds, not k + 1. The user's step, whose equation (4) is not printed,
    is that of the mean
      squared error of the user's own ratings.

    Raises: ValueError for a projection, which is `gd_dr`'s.
    """
    if config.num_projected is not None:
        raise ValueError("num_projected goes with gd_dr: gd has no projection")
    return _mechanism(config)


def gd_dr(config: Config) -> Mechanism:
    """Paper 004, algorithm 2: one entry of Φ times the gradient of V, uniformly among q × rank,
    lifted back.

    Guarantee: as `gd`; Φ is public.
    Departs from the paper: as `gd`; and V is updated once a round, not once a user.

    Raises: ValueError without num_projected.
    """
    if config.num_projected is None:
        raise ValueError("gd_dr needs num_projected, the number of rows of Φ (q)")
    return _mechanism(config)


def non_private(config: Config) -> Mechanism:
    """Non-private GD, the paper's baseline: `gd` with every user's whole gradient, as it is;
    epsilon is not read.

    Guarantee: none. The server sees Σ over users of -2·e_ij·u_i.
    """
    return _without_reports(_params(config))


def silent(mechanism: Mechanism) -> Mechanism:
    """The control of `gd` and of `gd_dr`: `non_private` with the settings of this mechanism."""
    assert isinstance(mechanism.update, Partial)
    return _without_reports(mechanism.update.args[0])


def _without_reports(params: Params) -> Mechanism:
    params = dataclasses.replace(params, num_projected=None)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(_no_shared_coins),
        query=Partial(_mean_gradient),
        noise=noise.none(),
        update=Partial(_update_exact, params),
        release=Partial(_release),
        guarantee=Partial(_no_guarantee),
    )


def _mechanism(config: Config) -> Mechanism:
    params = _params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(_no_shared_coins),
        query=Partial(_query, params),
        noise=noise.one_bit(config.epsilon_report),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


def _params(config: Config) -> Params:
    f32 = jnp.float32
    return Params(
        epsilon=config.epsilon,
        gain=f32(noise.one_bit_gain(config.epsilon_report)),
        learning_rate=f32(config.learning_rate),
        user_learning_rate=f32(
            config.learning_rate if config.user_learning_rate is None else config.user_learning_rate
        ),
        regularization=f32(config.regularization),
        center=f32(config.center),
        clip=f32(config.clip),
        num_rounds=config.num_rounds,
        rank=config.rank,
        schedule=config.schedule,
        num_projected=config.num_projected,
        law=config.law,
        lift=config.lift,
        fresh_projection=config.fresh_projection,
    )


# --- the state


def _no_shared_coins(key: jax.Array) -> jax.Array:
    return key  # of the users' coordinates, which are drawn without looking at ratings


def _optimizer(learning_rate: jax.Array) -> optax.GradientTransformation:
    return optax.sgd(lambda count: learning_rate / (count + 1))


def _init(params: Params, key: jax.Array, data: Any, previous: Any) -> State:
    user_key, item_key, group_key, phi_key = jax.random.split(key, 4)
    users, items = (
        unit_rows(k, rows, params.rank)
        for k, rows in ((user_key, data.num_users), (item_key, data.num_items))
    )
    group = None
    if params.schedule == "partition":
        group = jax.random.permutation(group_key, jnp.arange(data.num_users) % params.num_rounds)
    words = gram_inverse = None
    if params.num_projected is not None:
        words = bits.public_words(phi_key)
        if params.lift == "pseudo-inverse":
            gram_inverse = projection.gram_inverse(
                words, params.law, params.num_projected, data.num_items
            )
    center = params.center if previous is None else previous.center
    public = Public(
        items, center, group, words, gram_inverse, _optimizer(params.learning_rate).init(items)
    )
    num_rated = layout.sum_by_user(
        data, _num_rated, jnp.zeros(data.num_users), jnp.zeros(data.num_items)
    )
    private = Private(users, num_rated, _optimizer(params.user_learning_rate).init(users))
    return State(public, private, jnp.int32(0))


def _num_rated(
    own: jax.Array, known: jax.Array, values: jax.Array, present: jax.Array
) -> jax.Array:
    del own, known, values
    return jnp.sum(present)


def _round_words(params: Params, public: Public, step: jax.Array) -> bits.Words | None:
    """Of this round's Φ."""
    if public.words is None or not params.fresh_projection:
        return public.words
    return bits.Words(public.words.high, public.words.low + jnp.uint32(step))


def announce(params: Params, public: Public, step: jax.Array) -> local_user.Round:
    """What the server tells every device at the start of a round; `local_user.speak` answers."""
    return local_user.Round(
        item_factors=public.item_factors,
        center=public.center,
        clip=params.clip,
        words=_round_words(params, public, step),
        law=params.law,
        num_projected=params.num_projected,
    )


# --- on the users' devices, all at once: `local_user` has one user


def _all_sums(
    params: Params, state: State, public: Public, data: Any, row: jax.Array, column: jax.Array
) -> local_user.Sums:
    """Every user's sums at item factors `public`, for the place that each was asked.

    In algorithm 2 `_query` and `_update` ask for the same. Over several devices a barrier keeps
    each from leaving out what it does not read: the compiler then sees that both are the same, and
    goes through the ratings once. Without it there are two passes, each lighter: for algorithm 1,
    whose two differ, and for one device, where the compiler does not see it.
    """
    phi = announce(params, public, state.step).phi
    users = state.private.user_factors
    own = local_user.Own(layout.pad_rank(users), users[jnp.arange(data.num_users), column], row)
    known = local_user.Known(layout.pad_rank(public.item_factors), layout.INDEX)
    sums = layout.sum_by_user(data, Partial(local_user.sums, public.center, phi), own, known)
    if phi is not None and data.num_devices > 1:
        sums = jax.lax.optimization_barrier(sums)
    return sums._replace(gradient=sums.gradient[:, : params.rank])


def _per_item(center: jax.Array, num_items: int) -> jax.Array:
    return jnp.broadcast_to(center, (num_items,))


def _query(params: Params, state: State, data: Any, coins: jax.Array) -> tuple[Report, Info]:
    public = state.public
    row_key, column_key = jax.random.split(coins)
    rows = announce(params, public, state.step).num_rows
    row = bits.places(bits.public_words(row_key), data.num_users, rows)
    column = bits.places(bits.public_words(column_key), data.num_users, params.rank)
    sums = _all_sums(params, state, public, data, row, column)
    sent = (
        jnp.ones(data.num_users, bool)
        if public.group is None
        else public.group == state.step % params.num_rounds
    )
    outside = jnp.mean(sent * (jnp.abs(sums.entry) > params.clip)) / jnp.maximum(
        jnp.mean(sent), 1e-9
    )
    report = local_user.report(Coordinate(row, column), sums.entry, params.clip, sent)
    return report, Info(jnp.sum(sums.squared) / data.num_ratings, outside)


def _devices(
    params: Params, state: State, public: Public, data: Any, row: jax.Array, column: jax.Array
) -> Private:
    """Every user's own step on the mean squared error of the own ratings, at item factors
    `public`.
    """
    sums = _all_sums(params, state, public, data, row, column)
    own = state.private
    gradient = sums.gradient / jnp.maximum(own.num_rated, 1)[:, None]
    factors, optimizer_state = _descend(
        params, params.user_learning_rate, own.user_factors, gradient, own.optimizer_state
    )
    return own._replace(user_factors=factors, optimizer_state=optimizer_state)


def _item_sum(
    own: jax.Array, users: jax.Array, values: jax.Array, present: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One item: (-2 Σ e_i·u_i, Σ e²); the last entry of `own` is the centre."""
    factors, center = own[:-1], own[-1]
    residual = present * (values - center - users @ factors)
    return -2 * residual @ users, residual @ residual


def _mean_gradient(state: State, data: Any, coins: jax.Array) -> tuple[jax.Array, Info]:
    """(1/n) Σ_i ∇V of user i, float32[items, rank]."""
    del coins  # everybody is asked for everything
    items, users = state.public.item_factors, state.private.user_factors
    center = _per_item(state.public.center, data.num_items)
    own = jnp.concatenate([layout.pad_rank(items), center[:, None]], axis=1)
    total, squared = layout.sum_by_item(data, _item_sum, own, layout.pad_rank(users))
    mean = total[:, : items.shape[1]] / data.num_users
    return mean, Info(jnp.sum(squared) / data.num_ratings, jnp.float32(0))


# --- at the server, which sees messages and nothing else


def server(
    params: Params, public: Public, messages: Message, step: jax.Array, *, num_devices: int = 1
) -> Public:
    """The item factors after a round: the mean of what was said, lifted back, as a step of
    descent.
    """
    num_items, rows = public.item_factors.shape[0], announce(params, public, step).num_rows
    said = messages.bit * (params.clip * rows * params.rank / params.gain)
    mean = (
        jnp.zeros((rows, params.rank))
        .at[messages.coordinate.row, messages.coordinate.column]
        .add(said)
    )
    mean = mean / jnp.maximum(jnp.sum(jnp.abs(messages.bit)), 1)
    words = _round_words(params, public, step)
    if words is not None and params.lift == "transpose":
        mean = projection.apply_transpose(
            words, params.law, mean, num_items, num_devices=num_devices
        )
    elif words is not None:
        mean = projection.apply_pseudo_inverse(
            words, params.law, public.gram_inverse, mean, num_items, num_devices=num_devices
        )
    items, optimizer_state = _descend(
        params, params.learning_rate, public.item_factors, mean, public.optimizer_state
    )
    return public._replace(item_factors=items, optimizer_state=optimizer_state)


def _descend(
    params: Params,
    learning_rate: jax.Array,
    factors: jax.Array,
    gradient: jax.Array,
    optimizer_state: Any,
) -> tuple[Any, Any]:
    full = gradient + 2 * params.regularization * factors
    updates, optimizer_state = _optimizer(learning_rate).update(full, optimizer_state, factors)
    return optax.apply_updates(factors, updates), optimizer_state


def _update(params: Params, state: State, response: Report, data: Any) -> State:
    said = local_user.message(response)
    after = server(params, state.public, said, state.step, num_devices=data.num_devices)
    # algorithm 1 moves the users after V, algorithm 2 before it
    seen = after if params.num_projected is None else state.public
    return State(
        after, _devices(params, state, seen, data, response.row, response.column), state.step
    )


def _update_exact(params: Params, state: State, response: jax.Array, data: Any) -> State:
    before = state.public
    items, optimizer_state = _descend(
        params, params.learning_rate, before.item_factors, response, before.optimizer_state
    )
    after = before._replace(item_factors=items, optimizer_state=optimizer_state)
    nobody = jnp.zeros(data.num_users, jnp.int32)
    return State(after, _devices(params, state, after, data, nobody, nobody), state.step)


def _release(state: State) -> Release:
    return Release(item_factors=state.public.item_factors, center=state.public.center)


def _no_guarantee(num_steps: int) -> Guarantee:
    return no_guarantee(
        mechanism="local-non-private", num_steps=num_steps, released=("item factors",), unit="user"
    )


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    """Of so many rounds: a user who reports r times pays r times what one report costs."""
    whole, num_rounds = Fraction(float(params.epsilon)), int(params.num_rounds)
    if params.schedule == "partition":
        reports = -(-num_steps // num_rounds)
        spent = whole * reports
    else:
        reports, spent = num_steps, whole * num_steps / num_rounds
    epsilon = (
        float(spent) if Fraction(float(spent)) >= spent else math.nextafter(float(spent), math.inf)
    )
    projected = (
        ("Φ is public and drawn without looking at data",)
        if params.num_projected is not None
        else ()
    )
    catalogue = (
        "which items there are, and who takes part, is public and declared, not read off the"
        " ratings"
    )
    where = (
        "each user's part runs on the user's own device; who runs all of them in one place, as"
        " here, sees all ratings"
    )
    return local_guarantee(
        epsilon,
        reports,
        mechanism="local-gd" if params.num_projected is None else "local-gd-dr",
        assumptions=(catalogue, where, *projected),
    )
