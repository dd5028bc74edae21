"""Paper 003's protocol as messages between three roles, each a function of what that role may see
(4.2 and 4.3).

    user         Own, and the Request that the recommender answers with        -> Upload, to the
    third party third party  the Uploads that arrive, and its own secret α                 -> Total,
    one per iteration or nothing recommender  which items are asked for, the Total, the Requests it
    made    -> Opened, one sum per item

One user is written once and `vmap`ped; leading axes of users below. Everything that is added up is
an element of Z_2^32 (`ring`): a contribution is clipped and rounded to the grid before its noise,
and a pad that is uniform on the ring hides it perfectly, which one on an interval of real numbers
does not. Wrap-around is defined, nothing is refused.

- S2: every user keeps a share of η (`keep_share`) for all iterations, and all of them have to
  arrive in each.
- S3: a group of users adds up η once (`initialise`) as τ̂ = α + η, where the recommender holds τ̂,
  the third party α, and neither knows η. In every iteration the recommender cuts τ̂ into one piece
  for each user who asked, and the third party takes α off. Of users who drop out their pads are not
  taken off and the recommender adds their pieces itself, since it made them: what is opened is the
  sum of those who arrived plus the whole of η. It is never half unmasked.

A third party must send one total per iteration: the difference of two would be a single message
without its pad. It sends nothing of an item that too few users contributed to (never of one with no
contribution: that would be η itself).

Two laws of noise, by rules that everybody knows:
- `published`  equation (12), real shares over an H that the recommender draws afresh for each
  iteration and sends with the number k of users in the item's group; no clip; a user lists the
  items that he rated, which both others see.
- `per_user`   integer shares that nobody is told anything for, of the whole price of an iteration,
  so that there is no η; the whole message is clipped. Every user lists the whole catalogue: all
  items get noise, and nobody sees who rated what.

Bytes of a user with 20 items, d = 50: 12,000 down (item factors, pads, pieces; the paper has 12
KB), 4,080 up to the third party (5 KB). `published` needs k and H as well, 80 and 4,000 bytes more,
which the paper's number leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jax.typing import ArrayLike

from dpmf_jax.noise import ring, shares

# --------------------------------------------------------------------------------------------- what


class Own(NamedTuple):
    """What one user's device holds, and never sends.

    factors: u_i, float32[d]. values: float32[n], the ratings of the listed items. rated: bool[n],
      which of them are
    there: all in `published`, secret in `per_user`. share: of η, uint32[n, d], in S2; None in S3
      and in `per_user`.
    """

    factors: jax.Array
    values: jax.Array
    rated: jax.Array
    share: jax.Array | None = None


class Ask(NamedTuple):
    """User to recommender: give me these items. items: int32[n], distinct; the number of items
    where padded.
    """

    items: jax.Array


class Request(NamedTuple):
    """Recommender to user, one row per listed item; what the protocol does not need is None and not
    sent.

    pads: ψ (β in the initialisation), uint32[n, d]. item_factors: rows of V, float32[n, d]. pieces:
      of τ̂, uint32[n, d].
    factor: H, float32[n, d], and num_shares: k, int32[n], of `published`.
    """

    pads: jax.Array
    item_factors: jax.Array | None = None
    pieces: jax.Array | None = None
    factor: jax.Array | None = None
    num_shares: jax.Array | None = None


class Upload(NamedTuple):
    """User to third party. items: int32[n], as asked for. masked: φ (τ in the initialisation),
    uint32[n, d].
    """

    items: jax.Array
    masked: jax.Array


class Total(NamedTuple):
    """Third party to recommender. sums: uint32[items, d]. opened: bool[items], where there is one,
    and 0 elsewhere.
    arrived: bool[users], of whom.
    """

    sums: jax.Array
    opened: jax.Array
    arrived: jax.Array


class Opened(NamedTuple):
    """At the recommender. sums: uint32[items, d], `ring.decode` makes numbers of them. opened:
    bool[items], where there is one, and 0 elsewhere. counts: int32[items], how many users are in
    it.
    """

    sums: jax.Array
    opened: jax.Array
    counts: jax.Array


class Messages(NamedTuple):
    """All that was sent in an iteration, for tests and for counting bytes; no role sees all of
    it.
    """

    asks: Ask
    requests: Request
    uploads: Upload
    total: Total


class Rules(NamedTuple):
    """Public, and fixed before the first iteration.

    step: h, the grid of the ring. center: subtracted from ratings. clip_norm: C, of the L1 norm of
    a user's whole message; infinite for none. share: (key, Request) -> uint32[n, d], a user's own
    noise of one iteration.
    """

    step: jax.Array
    center: jax.Array
    clip_norm: jax.Array
    share: Callable[..., jax.Array]


def published(*, scale: ArrayLike, step: ArrayLike, center: ArrayLike = 0.0) -> Rules:
    """As the paper has it: no clip, and shares (12) of b = `scale` = 2Δ√d/ε, each rounded to the
    grid on its own.

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
    """Sound: the whole message clipped to C in L1, then rounded toward zero, then a share of the
    discrete Laplace law.

    Guarantee: unit user, T·2C/b (replace) or T·C/b (remove) for T iterations of b =
      scale_in_steps·h, if k' honest users arrive in each and every user lists the whole catalogue;
      `iterations_guarantee`.

    Args: num_shares: k', honest users beside the protected one. The `at_least` of `add_up` is then
      k' + 1, and one more for each who may collude.

    Raises: ValueError for a known scale that is not positive, or k' below 1.
    """
    shares.check(scale_in_steps, num_shares)
    share = Partial(_discrete_share, jnp.float32(scale_in_steps), jnp.float32(num_shares))
    return _rules(step, center, clip_norm, share)


def without_noise(
    *, step: ArrayLike, center: ArrayLike = 0.0, clip_norm: ArrayLike = jnp.inf
) -> Rules:
    """Pads and sums alone: the third party learns nothing, the recommender the exact sums.
    Guarantee: none.
    """
    return _rules(step, center, clip_norm, Partial(_no_share))


def _rules(
    step: ArrayLike, center: ArrayLike, clip_norm: ArrayLike, share: Callable[..., jax.Array]
) -> Rules:
    return Rules(jnp.float32(step), jnp.float32(center), jnp.float32(clip_norm), share)


# ------------------------------------------------------------------------------------------ a user:


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
    """One user's g_ij = −2u_i(r_ij − center − u_i·v_j), clipped, on the grid: uint32[n, d]; 0 for
    what is not rated.

    Bound, unit user: Σ_j ‖g_ij‖₁ <= C for what is returned, whatever the data. A sum of N float32
    numbers errs by
      N·2^-24 of it at most, so scaling aims twice that below C; what is not a number makes the
      whole message 0.
    """
    said = jnp.matmul(item_factors, own.factors, precision="highest")
    residual = jnp.where(own.rated, own.values - rules.center - said, 0.0)
    gradient = -2 * residual[:, None] * own.factors
    norm = jnp.sum(jnp.abs(gradient))
    aim = rules.clip_norm * max(0.0, 1 - (gradient.size + 8) * 2.0**-23)
    return ring.encode(gradient * jnp.where(norm <= aim, 1.0, aim / norm), rules.step)


def upload(key: jax.Array, own: Own, ask: Ask, request: Request, rules: Rules) -> Upload:
    """Step (2) of 4.2 and 4.3: φ = contribution + share of η, or piece of τ̂, + share of ρ̃ + ψ.
    Spends `key`.
    """
    assert request.item_factors is not None
    masked = (
        contribution(own, request.item_factors, rules) + rules.share(key, request) + request.pads
    )
    for held in (own.share, request.pieces):
        masked = masked if held is None else masked + held
    return Upload(ask.items, masked)


def keep_share(key: jax.Array, request: Request, rules: Rules) -> jax.Array:
    """S2, before the first iteration: the user's share of η, uint32[n, d], to be kept as
    `Own.share`. Spends `key`.
    """
    return rules.share(key, request)


def introduce(key: jax.Array, ask: Ask, request: Request, rules: Rules) -> Upload:
    """S3, step (2) of the initialisation: τ = share of η + β. The user does not keep the share.
    Spends `key`.
    """
    return Upload(ask.items, rules.share(key, request) + request.pads)


# --------------------------------------------------------------------------------------------------


def draw_alpha(key: jax.Array, num_items: int, rank: int) -> jax.Array:
    """α, uint32[items, d], uniform: the third party's secret, from the initialisation on. Spends
    `key`.
    """
    return jax.random.bits(key, (num_items, rank), jnp.uint32)


def add_up(uploads: Upload, arrived: jax.Array, alpha: jax.Array, at_least: ArrayLike) -> Total:
    """Step (3): Σ φ over the users whose uploads arrived, minus α, of every item that enough of
    them contributed to.

    To be sent once per iteration, whoever comes late: the difference of two totals has no pad that
    hides it.

    Args:
      uploads: leading axis of users, of whom arrived, bool[users], are here; the rows of others are
        not looked at.
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


# --------------------------------------------------------------------------------------------------


def draw_factor(key: jax.Array, num_items: int, rank: int) -> jax.Array:
    """H ~ Exponential(1), float32[items, d]: of (12), drawn by the recommender, told to the users.
    Spends `key`.
    """
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
      asks: leading axis of users, of whom asked, bool[users], did ask; the others get rows that
        they never see.
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
    """τ̂ of every item in pieces, one for each user who asked for it: uint32[users, n, d]. Spends
    `key`.

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
    """τ̂ in `num_pieces` pieces, uint32[pieces, items, d]: `cut` where everybody asks for every
    item.
    """
    everything = jnp.broadcast_to(jnp.arange(tau_hat.shape[0]), (num_pieces, tau_hat.shape[0]))
    return cut(key, tau_hat, Ask(everything), jnp.ones(num_pieces, bool))


def open_sum(total: Total, asks: Ask, asked: jax.Array, requests: Request) -> Opened:
    """Step (4): the total without the pads of those who arrived, and with the pieces of those who
    asked and did not.

    So what is opened is Σ (contribution + ρ̃) over the arrived, plus all of η. A dropped user's pad
    is in no sum.
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
    """uint32[items, d]: elements, uint32[users, n, d], summed mod 2^32 where here, bool[users, n],
    without padding.
    """
    zeros = jnp.zeros((num_items, elements.shape[-1]), jnp.uint32)
    return zeros.at[items].add(jnp.where(here[..., None], elements, jnp.uint32(0)), mode="drop")


def _count(items: jax.Array, here: jax.Array, num_items: int) -> jax.Array:
    return jnp.zeros(num_items, jnp.int32).at[items].add(here.astype(jnp.int32), mode="drop")


# -------------------------------------------------------------------------------------------------


def initialise(
    key: jax.Array,
    rules: Rules,
    alpha: jax.Array,
    arrived: jax.Array,
    at_least: ArrayLike,
    factor: jax.Array | None = None,
) -> tuple[Opened, Messages]:
    """S3, before the first iteration: a group of users adds up η for every item of the catalogue.
    Spends `key`.

    Args:
      alpha: the third party's secret. arrived: bool[k], whose τ arrive of the k users invited.
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
    """One iteration with every role played. Jittable, no shape depends on data, fit for a scan.
    Spends `key`.

    Args:
      owns, asks: leading axis of users; lists of equal length, padded with the number of items.
      item_factors: V(t), float32[items, d]. alpha: uint32[items, d]; zeros in S2.
      asked: bool[users], who was there to ask. arrived: bool[users], whose uploads arrive, of those
        who asked.
      at_least: see `add_up`. tau_hat: τ̂ of S3. factor: H of `published`, fresh in each iteration.

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


# --------------------------------------------------------------------------------------------------

ROUTES = {
    "asks": ("user", "recommender"),
    "requests": ("recommender", "user"),
    "uploads": ("user", "third party"),
    "total": ("third party", "recommender"),
}


def num_bytes(message: Any) -> int:
    """Of a message's arrays, as they are, padding included; also of `jax.eval_shape`'s, which holds
    no numbers.
    """
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))


def traffic(messages: Messages) -> dict[tuple[str, str], int]:
    """Bytes by (sender, receiver): of all users together between users and others, as padded."""
    return {ROUTES[name]: num_bytes(message) for name, message in messages._asdict().items()}
