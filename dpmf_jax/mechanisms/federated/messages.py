"""What the three roles of paper 003's protocol send each other (4.2 and 4.3), and its bytes.

    user         Own, and the Request that answers it               -> Upload, to the third party
    third party  the Uploads that arrive, and its own secret α      -> Total, one per iteration
    recommender  who asked for which items, the Total, its Requests -> Opened, one sum per item

A user first sends an Ask, which the recommender answers with the Request. One user is written once
and `vmap`ped: types below have a leading axis of users where there are many. `roles` has what each
role does.

Bytes of a user with 20 items, d = 50: 12,000 down (item factors, pads, pieces; the paper has 12
KB), 4,080 up to the third party (5 KB). `published` rules need k and H as well, 80 and 4,000 bytes
more, which the paper's number leaves out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax


class Own(NamedTuple):
    """What one user's device holds, and never sends.

    factors: float32[d], u_i.
    values: float32[n], the ratings of the listed items.
    rated: bool[n], which of them are there: all with `published` rules, secret with `per_user`.
    share: uint32[n, d], of η, in S2; None in S3 and with `per_user` rules.
    """

    factors: jax.Array
    values: jax.Array
    rated: jax.Array
    share: jax.Array | None = None


class Ask(NamedTuple):
    """User to recommender: give me these items.

    items: int32[n], distinct; the number of items where padded.
    """

    items: jax.Array


class Request(NamedTuple):
    """Recommender to user, one row per listed item; a part that is None is not sent.

    pads: uint32[n, d], ψ (β in the initialisation).
    item_factors: float32[n, d], rows of V.
    pieces: uint32[n, d], of τ̂, in S3.
    factor: float32[n, d], H, with `published` rules.
    num_shares: int32[n], k, with `published` rules.
    """

    pads: jax.Array
    item_factors: jax.Array | None = None
    pieces: jax.Array | None = None
    factor: jax.Array | None = None
    num_shares: jax.Array | None = None


class Upload(NamedTuple):
    """User to third party.

    items: int32[n], as asked for.
    masked: uint32[n, d], φ (τ in the initialisation).
    """

    items: jax.Array
    masked: jax.Array


class Total(NamedTuple):
    """Third party to recommender.

    sums: uint32[items, d]; 0 where there is none.
    opened: bool[items], where there is a sum.
    arrived: bool[users], whose uploads are in them.
    """

    sums: jax.Array
    opened: jax.Array
    arrived: jax.Array


class Opened(NamedTuple):
    """What the recommender opens.

    sums: uint32[items, d], which `ring.decode` makes numbers of; 0 where there is none.
    opened: bool[items], where there is a sum.
    counts: int32[items], how many users are in it.
    """

    sums: jax.Array
    opened: jax.Array
    counts: jax.Array


class Messages(NamedTuple):
    """All that was sent in an iteration; no role sees all of it. For tests and counting bytes."""

    asks: Ask
    requests: Request
    uploads: Upload
    total: Total


ROUTES = {
    "asks": ("user", "recommender"),
    "requests": ("recommender", "user"),
    "uploads": ("user", "third party"),
    "total": ("third party", "recommender"),
}


def num_bytes(message: Any) -> int:
    """Bytes of a message's arrays, padding included; its arrays may be shapes alone."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))


def traffic(messages: Messages) -> dict[tuple[str, str], int]:
    """Bytes by (sender, receiver), padding included; those of all users together."""
    return {ROUTES[name]: num_bytes(message) for name, message in messages._asdict().items()}
