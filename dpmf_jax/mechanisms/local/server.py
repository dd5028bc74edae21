"""The server of paper 004: it announces a round, and moves V by the messages that come back.

It sees `Message`s and nothing else, so all it holds is public.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local.config import Params
from dpmf_jax.mechanisms.local.device import Message, Round
from dpmf_jax.noise import bits


class Public(NamedTuple):
    """What the server, and so everybody, knows.

    item_factors: float32[items, rank], V.
    center: float32[], subtracted from ratings.
    group: int32[users], the round in which a user reports; None where that is each.
    words: of Φ; None without one.
    gram_inverse: float32[q, q], (ΦΦᵀ)⁻¹, where the lift needs it.
    optimizer_state: of V.
    """

    item_factors: jax.Array
    center: jax.Array
    group: jax.Array | None
    words: bits.Words | None
    gram_inverse: jax.Array | None
    optimizer_state: Any


def optimizer(learning_rate: jax.Array) -> optax.GradientTransformation:
    """Descent at γ/t in round t."""
    return optax.sgd(lambda count: learning_rate / (count + 1))


def descend(
    params: Params,
    learning_rate: jax.Array,
    factors: jax.Array,
    gradient: jax.Array,
    optimizer_state: Any,
) -> tuple[Any, Any]:
    """(factors, optimizer state) after a step along a gradient, to which 2λ·factors is added."""
    full = gradient + 2 * params.regularization * factors
    updates, optimizer_state = optimizer(learning_rate).update(full, optimizer_state, factors)
    return optax.apply_updates(factors, updates), optimizer_state


def _round_words(params: Params, public: Public, step: jax.Array) -> bits.Words | None:
    """The words of this round's Φ."""
    if public.words is None or not params.fresh_projection:
        return public.words
    return bits.Words(public.words.high, public.words.low + jnp.uint32(step))


def announce(params: Params, public: Public, step: jax.Array) -> Round:
    """What the server tells every device at the start of a round; `device.speak` answers."""
    return Round(
        item_factors=public.item_factors,
        center=public.center,
        clip=params.clip,
        words=_round_words(params, public, step),
        law=params.law,
        num_projected=params.num_projected,
    )


def update(
    params: Params, public: Public, messages: Message, step: jax.Array, *, num_devices: int = 1
) -> Public:
    """What is public after a round: V descends along the mean of the reports, lifted back."""
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
    items, optimizer_state = descend(
        params, params.learning_rate, public.item_factors, mean, public.optimizer_state
    )
    return public._replace(item_factors=items, optimizer_state=optimizer_state)
