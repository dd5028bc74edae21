"""What hardly any draw needs, computed only where some draw needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def where_any(
    asks: Callable[..., jax.Array],
    rare: Callable[..., jax.Array],
    usual: Callable[..., jax.Array],
    *given: Any,
) -> jax.Array:
    """`rare(*given)` where `asks(*given)` is true anywhere, and `usual(*given)` else.

    Both are to say the same wherever `asks` is false. For many arrays at once there is one
    condition for all of them, where `vmap` of a condition would do both for each.
    """

    @jax.custom_batching.custom_vmap
    def one(*given: Any) -> jax.Array:
        return jax.lax.cond(jnp.any(asks(*given)), rare, usual, *given)

    @one.def_vmap
    def many(size: int, batched: Any, *given: Any) -> tuple[jax.Array, bool]:
        axes = tuple(jax.tree.map(lambda each: 0 if each else None, part) for part in batched)
        of_many = (jax.vmap(fn, in_axes=axes, axis_size=size) for fn in (asks, rare, usual))
        return where_any(*of_many, *given), True

    return one(*given)


def first(drawn: jax.Array, *_: Any) -> jax.Array:
    """Its first argument: what is drawn, where that is all there is to say."""
    return drawn
