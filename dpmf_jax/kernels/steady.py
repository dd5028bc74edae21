"""Float arithmetic of the same bits in any program.

A compiler may round a product and the sum that takes it at once, may divide a row by a number or
multiply it by that number's reciprocal, and adds numbers in the order that suits it: so in one
program, and otherwise in another that computes the same on more devices. `alike` keeps it from all
that. Every number is rounded by itself, quotients are products with reciprocals, and sums have one
order.

What one operation of XLA or LAPACK computes (a logarithm, an eigenvector) is trusted to be the same
for the same numbers. So results are the same on any number of devices of one kind; a CPU and a GPU
differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array, Float, Int

WIDE = 256  # rows are added this many at a time; fewer terms of a product, one after the other


# Nothing is rounded by these: they move numbers, or choose among them.
MOVES = frozenset(
    (
        *("broadcast_in_dim", "concatenate", "reshape", "slice", "squeeze", "transpose", "pad"),
        *("select_n", "max", "min", "neg", "abs", "copy", "stop_gradient", "dynamic_slice"),
    )
)


def hidden_zero(count: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
    """0, made of numbers that are at least 0; the compiler does not know that they are."""
    return jnp.minimum(count, 0)


def apart(zero: Int[Array, "*shape"], tree: Any) -> Any:
    """The same float32 numbers, each rounded before it is used.

    zero: a `hidden_zero` that broadcasts to every leaf.
    """

    def rounded(leaf: Any) -> jax.Array:
        word = jax.lax.bitcast_convert_type(leaf, jnp.int32) ^ zero
        return jax.lax.bitcast_convert_type(word, jnp.float32)

    return jax.tree.map(rounded, tree)


def alike(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, of float32 arrays, as a function (zero, *arguments) whose bits no program changes.

    zero: a `hidden_zero`, int32[].

    The result raises: ValueError, while it is traced, where `fn` loops, branches, or multiplies
      more than two matrices at once: what follows would be rounded as the compiler likes.
    """

    def steady(zero: jax.Array, *arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        found = _evaluated(zero, closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return steady


def _evaluated(zero: jax.Array, jaxpr: Any, consts: Any, arguments: list[Any]) -> list[Any]:
    """What `jaxpr` returns, operation by operation."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, [value(atom) for atom in equation.invars]
        inner = [part for part in equation.params.values() if isinstance(part, core.ClosedJaxpr)]
        if name in ("while", "scan", "cond"):
            raise ValueError(f"{name} has no fixed roundings")
        if name in ("jit", "pjit", "closed_call", "custom_jvp_call"):
            results = _evaluated(zero, inner[0].jaxpr, inner[0].consts, given)
        elif name == "div" and given[0].dtype == jnp.float32:
            results = [apart(zero, given[0] * apart(zero, 1 / given[1]))]
        elif name == "integer_pow" and given[0].dtype == jnp.float32:
            results = [_power(zero, given[0], equation.params["y"])]
        elif name == "reduce_sum" and given[0].dtype == jnp.float32:
            results = [_summed(given[0], equation.params["axes"])]
        elif name == "dot_general":
            results = [_multiplied(zero, *given, equation.params["dimension_numbers"])]
        else:
            results = equation.primitive.bind(*given, **equation.params)
            results = results if equation.primitive.multiple_results else [results]
            if name not in MOVES:
                results = [_rounded(zero, one) for one in results]
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _power(zero: jax.Array, number: jax.Array, exponent: int) -> jax.Array:
    """By products, each rounded: a compiler makes of x^-2 what it likes."""
    found = jnp.ones_like(number)
    for _ in range(abs(exponent)):
        found = apart(zero, found * number)
    return apart(zero, 1 / found) if exponent < 0 else found


def _rounded(zero: jax.Array, result: Any) -> Any:
    return apart(zero, result) if result.dtype == jnp.float32 else result


def _summed(numbers: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    rest = [size for axis, size in enumerate(numbers.shape) if axis not in axes]
    first = jnp.moveaxis(numbers, axes, range(len(axes)))
    return total(first.reshape(-1, *rest))


def total(numbers: Float[Array, "rows ..."]) -> jax.Array:
    """The sum over rows: chunks of them are added to each other, then halves to halves."""
    wide = min(WIDE, 1 << max(len(numbers) - 1, 0).bit_length())
    chunks = max(1, -(-len(numbers) // wide))
    spare = [(0, chunks * wide - len(numbers))] + [(0, 0)] * (numbers.ndim - 1)
    parts = jnp.pad(numbers, spare).reshape(chunks, wide, *numbers.shape[1:])
    sums = jax.lax.fori_loop(1, chunks, lambda at, found: found + parts[at], parts[0])
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


def _multiplied(
    zero: jax.Array, left: jax.Array, right: jax.Array, numbers: tuple[Any, Any]
) -> jax.Array:
    """dot_general of at most two matrices."""
    (ours, theirs), (batch, _) = numbers
    if len(ours) != 1 or batch or max(left.ndim, right.ndim) > 2:
        raise ValueError(f"a product of {left.shape} and {right.shape}")
    left, right = jnp.moveaxis(left, ours[0], 0), jnp.moveaxis(right, theirs[0], 0)
    shape = left.shape[1:] + right.shape[1:]
    left, right = (part.reshape(len(part), -1) for part in (left, right))
    product = _term_by_term if len(left) <= WIDE else _column_by_column
    return product(zero, left, right).reshape(shape)


def _term_by_term(
    zero: jax.Array, left: Float[Array, "k p"], right: Float[Array, "k q"]
) -> Float[Array, "p q"]:
    def add(at: jax.Array, found: jax.Array) -> jax.Array:
        return found + apart(zero, left[at][:, None] * right[at])

    nothing = jnp.zeros((left.shape[1], right.shape[1]), jnp.float32)
    return jax.lax.fori_loop(0, len(left), add, nothing)


def _column_by_column(
    zero: jax.Array, left: Float[Array, "k p"], right: Float[Array, "k q"]
) -> Float[Array, "p q"]:
    def column(one: jax.Array) -> jax.Array:
        return total(apart(zero, left * one[:, None]))

    return jax.lax.map(column, right.T).T
