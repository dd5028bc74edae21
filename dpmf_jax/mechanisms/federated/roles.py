"""What each role of paper 003's protocol does, as a function of what that role may see.

Everything that is added up is an element of Z_2^32 (`ring`). A contribution is clipped and rounded
to the grid before its noise. A pad that is uniform on the ring hides it perfectly, which a pad on
an interval of real numbers does not. Sums wrap around; nothing is refused.

- S2: every user keeps a share of η (`keep_share`) for all iterations, and all users have to arrive
  in each.
- S3: a group of users adds up η once (`initialise`), as τ̂ = α + η. The recommender holds τ̂, the
  third party α, and neither knows η. In every iteration the recommender cuts τ̂ into one piece for
  each user who asked, and the third party takes α off. The pads of users who drop out are not taken
  off, and the recommender adds their pieces itself, since it made them. What is opened is the sum
  of those who arrived plus the whole of η. It is never half unmasked.

A third party must send one total per iteration: the difference of two would be a single message
without its pad. It sends nothing of an item that too few users contributed to (never of one with no
contribution: that would be η itself).

Two laws of noise, by rules that everybody knows:
- `published`  equation (12): real shares over an H that the recommender draws afresh for each
  iteration and sends with the number k of users in the item's group; no clip. A user lists the
  items that he rated, which both others see.
- `per_user`   integer shares that nobody is told anything for, of the whole price of an iteration,
  so that there is no η; the whole message is clipped. Every user lists the whole catalogue: all
  items get noise, and nobody sees who rated what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jax.typing import ArrayLike

from dpmf_jax.mechanisms.federated.messages import (
    Ask,
    Messages,
    Opened,
    Own,
    Request,
    Total,
    Upload,
)
from dpmf_jax.noise import ring, shares


class Rules(NamedTuple):
    """What is public, and fixed before the first iteration.

    step: h, the grid of the ring.
    center: subtracted from ratings.
    clip_norm: C, the bound on the L1 norm of a user's whole message; infinite for none.
    share: (key, Request) -> uint32[n, d], a user's own noise of one iteration.
    """

    step: jax.Array
    center: jax.Array
    clip_norm: jax.Array
    share: Callable[..., jax.Array]


def published(*, scale: ArrayLike, step: ArrayLike, center: ArrayLike = 0.0) -> Rules:
    """The paper's rules: no clip, and shares (12) of b = `scale` = 2Δ√d/ε, rounded one by one.

    Guarantee: that of `federated.mechanism`, claimed; none against the recommender, who knows H
      (`shares.published`).

    Raises: ValueError where a request comes without H.
    """
    return _rules(
        step, center, jnp.inf, Partial(_published_share, jnp.float32(scale), jnp.float32(step))
    )


def per_user(
    *,
    clip_norm: ArrayLike,
    scale_in_steps: ArrayLike,
    num_shares: int,
    step: ArrayLike,
    center: ArrayLike = 0.0,
) -> Rules:
    """Sound rules: the whole message clipped to C in L1, rounded, with a share of discrete Laplace.

    Messages are rounded toward zero.

    Guarantee: per user, T·2C/b (replace) or T·C/b (remove) for T iterations of b =
      scale_in_steps·h, if k' honest users arrive in each and every user lists the whole catalogue;
      `iterations_guarantee`.

    Args:
      num_shares: k', honest users other than the protected one. The `at_least` of `add_up` is then
        k' + 1, and one more for each who may collude.

    Raises: ValueError for a known scale that is not positive, or k' below 1.
    """
    shares.check(scale_in_steps, num_shares)
    share = Partial(_discrete_share, jnp.float32(scale_in_steps), jnp.float32(num_shares))
    return _rules(step, center, clip_norm, share)


def without_noise(
    *, step: ArrayLike, center: ArrayLike = 0.0, clip_norm: ArrayLike = jnp.inf
) -> Rules:
    """Rules of pads and sums alone: the recommender learns the exact sums. Guarantee: none."""
    return _rules(step, center, clip_norm, Partial(_no_share))


def _rules(
    step: ArrayLike, center: ArrayLike, clip_norm: ArrayLike, share: Callable[..., jax.Array]
) -> Rules:
    return Rules(jnp.float32(step), jnp.float32(center), jnp.float32(clip_norm), share)


# --- a user


def _published_share(
    scale: jax.Array, step: jax.Array, key: jax.Array, request: Request
) -> jax.Array:
    if request.factor is None or request.num_shares is None:
        raise ValueError("the published shares need H: give the recommender a factor")
    num_shares = jnp.maximum(request.num_shares, 1)[:, None]
    return ring.encode(
        shares.published(key, request.factor, scale, num_shares, request.pads.shape), step
    )


def _discrete_share(
    scale_in_steps: jax.Array, num_shares: jax.Array, key: jax.Array, request: Request
) -> jax.Array:
    return shares.discrete_laplace(key, scale_in_steps, num_shares, request.pads.shape)


def _no_share(key: jax.Array, request: Request) -> jax.Array:
    del key  # there is no noise
    return jnp.zeros(request.pads.shape, jnp.uint32)


def contribution(own: Own, item_factors: jax.Array, rules: Rules) -> jax.Array:
    """One user's clipped g_ij = −2u_i(r_ij − center − u_i·v_j) on the grid, uint32[n, d].

    It is 0 for what is not rated. Bound per user: Σ_j ‖g_ij‖₁ <= C, whatever the data. A sum of N
    float32 numbers errs by N·2^-24 of it at most, so scaling aims twice that below C. What is not
    a number makes the whole message 0.
    """
    said = jnp.matmul(item_factors, own.factors, precision="highest")
    residual = jnp.where(own.rated, own.values - rules.center - said, 0.0)
    gradient = -2 * residual[:, None] * own.factors
    norm = jnp.sum(jnp.abs(gradient))
    aim = rules.clip_norm * max(0.0, 1 - (gradient.size + 8) * 2.0**-23)
    return ring.encode(gradient * jnp.where(norm <= aim, 1.0, aim / norm), rules.step)


def upload(key: jax.Array, own: Own, ask: Ask, request: Request, rules: Rules) -> Upload:
    """Step (2): φ = contribution + (share of η, or piece of τ̂) + share of ρ̃ + ψ. Spends `key`."""
    assert request.item_factors is not None
    masked = (
        contribution(own, request.item_factors, rules) + rules.share(key, request) + request.pads
    )
    for held in (own.share, request.pieces):
        masked = masked if held is None else masked + held
    return Upload(ask.items, masked)


def keep_share(key: jax.Array, request: Request, rules: Rules) -> jax.Array:
    """S2, before the first iteration: the user's share of η, uint32[n, d]. Spends `key`.

    The user keeps it as `Own.share`.
    """
    return rules.share(key, request)


def introduce(key: jax.Array, ask: Ask, request: Request, rules: Rules) -> Upload:
    """S3, step (2) of the initialisation: τ = share of η + β. Spends `key`.

    The user does not keep the share.
    """
    return Upload(ask.items, rules.share(key, request) + request.pads)


# --- the third party


def draw_alpha(key: jax.Array, num_items: int, rank: int) -> jax.Array:
    """α, uint32[items, d], uniform: the third party's secret in S3. Spends `key`."""
    return jax.random.bits(key, (num_items, rank), jnp.uint32)


def add_up(uploads: Upload, arrived: jax.Array, alpha: jax.Array, at_least: ArrayLike) -> Total:
    """Step (3): Σ φ over the users who arrived, minus α, of every item with enough of them.

    It is to be sent once per iteration, whoever comes late: the difference of two totals has no pad
    that hides it.

    Args:
      uploads: leading axis of users.
      arrived: bool[users], whose uploads are here; the rows of others are not looked at.
      alpha: uint32[items, d]; zeros in S2; its negative in the initialisation, where α is added.
      at_least: int32, or int32[items]: as many as the claimed noise needs, see `per_user`; in S2 as
        published all of the item's users, since η lacks the share of each who is missing. At least
        1 is taken.
    """
    here = jnp.broadcast_to(arrived[:, None], uploads.items.shape)
    sums = _per_item(uploads.items, here, uploads.masked, alpha.shape[0]) - alpha
    counts = _count(uploads.items, here, alpha.shape[0])
    opened = counts >= jnp.maximum(jnp.asarray(at_least, jnp.int32), 1)
    return Total(jnp.where(opened[:, None], sums, jnp.uint32(0)), opened, arrived)


# --- the recommender


def draw_factor(key: jax.Array, num_items: int, rank: int) -> jax.Array:
    """H ~ Exponential(1) of (12), float32[items, d], which users are told. Spends `key`."""
    return jax.random.exponential(key, (num_items, rank), jnp.float32)


def request(
    key: jax.Array,
    asks: Ask,
    asked: jax.Array,
    num_items: int,
    rank: int,
    *,
    item_factors: jax.Array | None = None,
    tau_hat: jax.Array | None = None,
    factor: jax.Array | None = None,
) -> Request:
    """Step (1): what each user gets, leading axis of users. Spends `key`.

    Args:
      asks: leading axis of users.
      asked: bool[users], who did ask; the others get rows that they never see.
      item_factors: V(t), float32[items, d]; None in the initialisation.
      tau_hat: τ̂, uint32[items, d], of S3: cut into one piece for each user who asked for the item.
      factor: H, float32[items, d], of `published`: sent with k, the number of users who asked for
        the item.
    """
    pad_key, piece_key = jax.random.split(key)
    pads = jax.random.bits(pad_key, (*asks.items.shape, rank), jnp.uint32)
    here = jnp.broadcast_to(asked[:, None], asks.items.shape)
    return Request(
        pads,
        None if item_factors is None else _rows(item_factors, asks.items),
        None if tau_hat is None else cut(piece_key, tau_hat, asks, asked),
        None if factor is None else _rows(factor, asks.items),
        None if factor is None else _rows(_count(asks.items, here, num_items), asks.items),
    )


def cut(key: jax.Array, tau_hat: jax.Array, asks: Ask, asked: jax.Array) -> jax.Array:
    """τ̂ of every item in pieces, one for each who asked: uint32[users, n, d]. Spends `key`.

    They sum to τ̂ in the ring, and all of an item's pieces but any one are uniform and independent
    of each other and of τ̂. Users who did not ask, and padding, have 0.
    """
    users, (num_items, rank) = asks.items.shape[0], tau_hat.shape
    place = jnp.broadcast_to(jnp.arange(users)[:, None], asks.items.shape)
    member = asked[:, None] & (asks.items < num_items)
    last = jnp.full(num_items, -1).at[asks.items].max(jnp.where(member, place, -1), mode="drop")
    closes = member & (place == _rows(last, asks.items))
    drawn = jax.random.bits(key, (*asks.items.shape, rank), jnp.uint32)
    rest = tau_hat - _per_item(asks.items, member & ~closes, drawn, num_items)
    return jnp.where(
        member[..., None],
        jnp.where(closes[..., None], _rows(rest, asks.items), drawn),
        jnp.uint32(0),
    )


def split(key: jax.Array, tau_hat: jax.Array, num_pieces: int) -> jax.Array:
    """τ̂ in pieces, uint32[pieces, items, d]: `cut` where everybody asks for every item."""
    everything = jnp.broadcast_to(jnp.arange(tau_hat.shape[0]), (num_pieces, tau_hat.shape[0]))
    return cut(key, tau_hat, Ask(everything), jnp.ones(num_pieces, bool))


def open_sum(total: Total, asks: Ask, asked: jax.Array, requests: Request) -> Opened:
    """Step (4): the total, minus the pads of who arrived, plus the pieces of who asked and did not.

    So Σ (contribution + ρ̃) over the arrived is opened, plus all of η. A dropped user's pad is in no
    sum.
    """
    num_items = total.sums.shape[0]
    here = jnp.broadcast_to(total.arrived[:, None], asks.items.shape)
    sums = total.sums - _per_item(asks.items, here, requests.pads, num_items)
    if requests.pieces is not None:
        missing = (asked & ~total.arrived)[:, None] & jnp.ones_like(here)
        sums = sums + _per_item(asks.items, missing, requests.pieces, num_items)
    counts = jnp.where(total.opened, _count(asks.items, here, num_items), 0)
    return Opened(jnp.where(total.opened[:, None], sums, jnp.uint32(0)), total.opened, counts)


def _rows(table: jax.Array, items: jax.Array) -> jax.Array:
    """table[items], 0 where padded."""
    return table.at[items].get(mode="fill", fill_value=0)


def _per_item(items: jax.Array, here: jax.Array, elements: jax.Array, num_items: int) -> jax.Array:
    """uint32[items, d]: elements, uint32[users, n, d], summed mod 2^32 where here, bool[users, n].

    Padding is left out.
    """
    zeros = jnp.zeros((num_items, elements.shape[-1]), jnp.uint32)
    return zeros.at[items].add(jnp.where(here[..., None], elements, jnp.uint32(0)), mode="drop")


def _count(items: jax.Array, here: jax.Array, num_items: int) -> jax.Array:
    return jnp.zeros(num_items, jnp.int32).at[items].add(here.astype(jnp.int32), mode="drop")


# --- all roles together


def initialise(
    key: jax.Array,
    rules: Rules,
    alpha: jax.Array,
    arrived: jax.Array,
    at_least: ArrayLike,
    factor: jax.Array | None = None,
) -> tuple[Opened, Messages]:
    """S3, before the first iteration: a group of users adds up η for every item. Spends `key`.

    Args:
      alpha: the third party's secret.
      arrived: bool[k], whose τ arrive of the k users invited.
      at_least: what η needs, all k with shares (12). Fewer: nothing is opened, and it is begun
        again, with another α.
      factor: H of this η, for `published`.

    Returns: (τ̂, which stays with the recommender, the messages).
    """
    request_key, user_key = jax.random.split(key)
    num_users, (num_items, rank) = arrived.shape[0], alpha.shape
    invited = jnp.ones(num_users, bool)
    asks = Ask(jnp.broadcast_to(jnp.arange(num_items), (num_users, num_items)))
    requests = request(request_key, asks, invited, num_items, rank, factor=factor)
    uploads = jax.vmap(introduce, (0, 0, 0, None))(
        jax.random.split(user_key, num_users), asks, requests, rules
    )
    total = add_up(uploads, arrived, -alpha, at_least)
    return open_sum(total, asks, invited, requests), Messages(asks, requests, uploads, total)


def iteration(
    key: jax.Array,
    rules: Rules,
    owns: Own,
    asks: Ask,
    item_factors: jax.Array,
    alpha: jax.Array,
    asked: jax.Array,
    arrived: jax.Array,
    at_least: ArrayLike,
    *,
    tau_hat: jax.Array | None = None,
    factor: jax.Array | None = None,
) -> tuple[Opened, Messages]:
    """One iteration with every role played. Spends `key`.

    Can be jitted and scanned: no shape depends on data.

    Args:
      owns, asks: leading axis of users; lists of equal length, padded with the number of items.
      item_factors: V(t), float32[items, d].
      alpha: uint32[items, d]; zeros in S2.
      asked: bool[users], who was there to ask.
      arrived: bool[users], whose uploads arrive, of those who asked.
      at_least: see `add_up`.
      tau_hat: τ̂ of S3.
      factor: H of `published`, fresh in each iteration.

    Returns: (what the recommender opens, the messages).
    """
    request_key, user_key = jax.random.split(key)
    num_items, rank = item_factors.shape
    requests = request(
        request_key,
        asks,
        asked,
        num_items,
        rank,
        item_factors=item_factors,
        tau_hat=tau_hat,
        factor=factor,
    )
    keys = jax.random.split(user_key, asked.shape[0])
    uploads = jax.vmap(upload, (0, 0, 0, 0, None))(keys, owns, asks, requests, rules)
    total = add_up(uploads, arrived & asked, alpha, at_least)
    return open_sum(total, asks, asked, requests), Messages(asks, requests, uploads, total)
