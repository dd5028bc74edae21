"""Local differential privacy by one coordinate and one bit a round (paper 004): gradient descent.

V ≈ center + U Vᵀ. The server holds the item factors V. Each user holds the own ratings and the own
row of U, and says one bit a round about one entry of the own gradient (`device`). The server sees
these `Message`s and nothing else (`server`).

- `gd`           Private GD (algorithm 1): an entry of the gradient of V, of items × rank.
- `gd_dr`        Private GD-DR (algorithm 2): an entry of Φ times that gradient, of q × rank, which
  the server lifts back by Φ, a public random projection.
- `non_private`  the paper's baseline: every user's whole gradient, as it is. It protects nothing.

As published, everybody reports in each of k rounds at ε/k, Φ is one Gaussian matrix, and the lift
is its pseudo-inverse. Settings give variants with the same guarantee: `lift="transpose"`,
`fresh_projection`, `law="sign"`, `clip`, `schedule="partition"`, `user_learning_rate`.

Departs from the paper: the printed loop runs k + 1 rounds and would spend ε·(k + 1)/k; here it is
k. The printed algorithm 2 updates V inside the loop over users; here each device does it once a
round.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from accounting.guarantee import Guarantee, no_guarantee
from dpmf_jax import layout
from dpmf_jax.kernels import projection
from dpmf_jax.kernels.descent import unit_rows
from dpmf_jax.layout import Layout
from dpmf_jax.mechanisms.local import device, server
from dpmf_jax.mechanisms.local.config import Config, Params, make_params
from dpmf_jax.mechanisms.local.device import Coordinate
from dpmf_jax.mechanisms.local.guarantee import epsilon_spent, local_guarantee
from dpmf_jax.mechanisms.local.server import Public
from dpmf_jax.noise import bits
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Report
from dpmf_jax.protocol import Info, Mechanism, Release, State


class Private(NamedTuple):
    """What the users' devices hold: row u is user u's own, is updated there and never sent.

    user_factors: float32[users, rank].
    num_rated: float32[users], the number of own ratings.
    optimizer_state: of the users' own steps.
    """

    user_factors: jax.Array
    num_rated: jax.Array
    optimizer_state: Any


def gd(config: Config) -> Mechanism:
    """Item factors by algorithm 1: a report is about one entry of the gradient of V.

    The entry is chosen uniformly among items × rank. The user's own step, whose equation (4) is not
    printed, descends on the mean squared error of the user's own ratings.

    Guarantee: pure ε per user in the local model, for any change to all of a user's ratings and
      items; proved (lemma 1 and theorem 1). Taking part is visible.
    Departs from the paper: k rounds, not k + 1.

    Raises: ValueError for a projection, which is `gd_dr`'s.
    """
    if config.num_projected is not None:
        raise ValueError("num_projected goes with gd_dr: gd has no projection")
    return _mechanism(config)


def gd_dr(config: Config) -> Mechanism:
    """Item factors by algorithm 2: a report is about one entry of Φ times the gradient of V.

    The entry is chosen uniformly among q × rank. The server lifts the reports back by Φ.

    Guarantee: as `gd`; Φ is public.
    Departs from the paper: as `gd`; and V is updated once a round, not once a user.

    Raises: ValueError without num_projected.
    """
    if config.num_projected is None:
        raise ValueError("gd_dr needs num_projected, the number of rows of Φ (q)")
    return _mechanism(config)


def non_private(config: Config) -> Mechanism:
    """Item factors by the paper's baseline: `gd` with every user's whole gradient, as it is.

    Guarantee: none. The server sees Σ over users of -2·e_ij·u_i. `config.epsilon` is not read.
    """
    return _without_reports(make_params(config))


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
    params = make_params(config)
    return Mechanism(
        init=Partial(_init, params),
        coins=Partial(_no_shared_coins),
        query=Partial(_query, params),
        noise=noise.one_bit(config.epsilon_report),
        update=Partial(_update, params),
        release=Partial(_release),
        guarantee=Partial(_guarantee, params),
    )


# --- the state


def _no_shared_coins(key: jax.Array) -> jax.Array:
    return key  # of the users' coordinates, which are drawn without looking at ratings


def _init(params: Params, key: jax.Array, data: Layout, previous: Any) -> State:
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
        items,
        center,
        group,
        words,
        gram_inverse,
        server.optimizer(params.learning_rate).init(items),
    )
    num_rated = layout.sum_by_user(
        data, _num_rated, jnp.zeros(data.num_users), jnp.zeros(data.num_items)
    )
    private = Private(users, num_rated, server.optimizer(params.user_learning_rate).init(users))
    return State(public, private, jnp.int32(0))


def _num_rated(
    own: jax.Array, known: jax.Array, values: jax.Array, present: jax.Array
) -> jax.Array:
    del own, known, values
    return jnp.sum(present)


# --- on all users' devices at once: `device` has one user


def _all_sums(
    params: Params, state: State, public: Public, data: Layout, row: jax.Array, column: jax.Array
) -> device.Sums:
    """Every user's sums at item factors `public`, for the entry that each was asked about.

    In algorithm 2 `_query` and `_update` ask for the same sums. Over several devices an
    optimization barrier stops XLA from pruning unused outputs, so that it recognises the two sums
    as one and reads the ratings once. Without the barrier there are two passes, each lighter. That
    is better for algorithm 1, whose sums differ, and for one device, where XLA does not recognise
    them.
    """
    phi = server.announce(params, public, state.step).phi
    users = state.private.user_factors
    own = device.Own(layout.pad_rank(users), users[jnp.arange(data.num_users), column], row)
    known = device.Known(layout.pad_rank(public.item_factors), layout.INDEX)
    sums = layout.sum_by_user(data, Partial(device.sums, public.center, phi), own, known)
    if phi is not None and data.num_devices > 1:
        sums = jax.lax.optimization_barrier(sums)
    return sums._replace(gradient=sums.gradient[:, : params.rank])


def _per_item(center: jax.Array, num_items: int) -> jax.Array:
    return jnp.broadcast_to(center, (num_items,))


def _query(params: Params, state: State, data: Layout, coins: jax.Array) -> tuple[Report, Info]:
    public = state.public
    row_key, column_key = jax.random.split(coins)
    rows = server.announce(params, public, state.step).num_rows
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
    report = device.report(Coordinate(row, column), sums.entry, params.clip, sent)
    return report, Info(jnp.sum(sums.squared) / data.num_ratings, outside)


def _own_steps(
    params: Params, state: State, public: Public, data: Layout, row: jax.Array, column: jax.Array
) -> Private:
    """Every user's step on the mean squared error of the own ratings, at item factors `public`."""
    sums = _all_sums(params, state, public, data, row, column)
    own = state.private
    gradient = sums.gradient / jnp.maximum(own.num_rated, 1)[:, None]
    factors, optimizer_state = server.descend(
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


def _mean_gradient(state: State, data: Layout, coins: jax.Array) -> tuple[jax.Array, Info]:
    """(1/n) Σ_i ∇V of user i, float32[items, rank]."""
    del coins  # everybody is asked for everything
    items, users = state.public.item_factors, state.private.user_factors
    center = _per_item(state.public.center, data.num_items)
    own = jnp.concatenate([layout.pad_rank(items), center[:, None]], axis=1)
    total, squared = layout.sum_by_item(data, _item_sum, own, layout.pad_rank(users))
    mean = total[:, : items.shape[1]] / data.num_users
    return mean, Info(jnp.sum(squared) / data.num_ratings, jnp.float32(0))


def _update(params: Params, state: State, response: Report, data: Layout) -> State:
    said = device.message(response)
    after = server.update(params, state.public, said, state.step, num_devices=data.num_devices)
    # algorithm 1 moves the users after V, algorithm 2 before it
    seen = after if params.num_projected is None else state.public
    return State(
        after, _own_steps(params, state, seen, data, response.row, response.column), state.step
    )


def _update_exact(params: Params, state: State, response: jax.Array, data: Layout) -> State:
    before = state.public
    items, optimizer_state = server.descend(
        params, params.learning_rate, before.item_factors, response, before.optimizer_state
    )
    after = before._replace(item_factors=items, optimizer_state=optimizer_state)
    nobody = jnp.zeros(data.num_users, jnp.int32)
    return State(after, _own_steps(params, state, after, data, nobody, nobody), state.step)


def _release(state: State) -> Release:
    return Release(item_factors=state.public.item_factors, center=state.public.center)


def _no_guarantee(num_steps: int) -> Guarantee:
    return no_guarantee(
        mechanism="local-non-private", num_steps=num_steps, released=("item factors",), unit="user"
    )


def _guarantee(params: Params, num_steps: int) -> Guarantee:
    """The price of so many rounds: a user who reports r times pays r times one report's price."""
    num_rounds = int(params.num_rounds)
    partition = params.schedule == "partition"
    reports = -(-num_steps // num_rounds) if partition else num_steps
    epsilon = epsilon_spent(float(params.epsilon), reports, 1 if partition else num_rounds)
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
