"""Is this a mechanism? Holds each part to what the protocol says it returns, by shapes alone.

Nothing is computed. A part of the wrong shape would end in an error of jax, far from its cause.
Here it is named, with what it returns and what it should.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from accounting.guarantee import Guarantee
from dpmf_jax import protocol
from dpmf_jax.errors import DpmfError, UsageError
from dpmf_jax.noise.laws import Noise
from dpmf_jax.protocol import Data, Info, Mechanism, Phase, Release, State

NOISE = {
    "sample": "(key, statistics) -> response",
    "log_prob": "(response, statistics) -> one number",
    "log_ratio": "(response, statistics, other) -> one number",
}
PARTS = {
    "init": "(key, data, previous) -> State(public, private, step), step an int32 number",
    "coins": "(key) -> a pytree of arrays, or None",
    "query": (
        "(state, data, coins) -> (statistics, Info(loss, clipped_fraction)), both of Info one"
        " number"
    ),
    "noise": "Noise(sample, log_prob, log_ratio)",
    "update": (
        "(state, response, data) -> State, every leaf of the shape and type that it came with"
    ),
    "release": "(state) -> Release",
    "guarantee": "(num_steps) -> accounting.Guarantee",
    **{f"noise.{name}": words for name, words in NOISE.items()},
}


def as_pytree(mechanism: Any) -> Mechanism:
    """The mechanism with plain functions wrapped, so that jit takes it as an argument.

    Raises: UsageError where it is no `Mechanism`, its noise no `Noise`, or a part no function.
    """
    if not isinstance(mechanism, Mechanism):
        raise UsageError(
            f"a mechanism is a dpmf_jax.protocol.Mechanism, not {_description(mechanism)}",
            fix=f"make one of {', '.join(Mechanism._fields)}",
        )
    if not isinstance(mechanism.noise, Noise):
        raise _error("noise", f"is {_description(mechanism.noise)}")

    def wrap(name: str, part: Any) -> Any:
        if not callable(part):
            raise _error(name, f"is {_description(part)}, no function")
        return part if isinstance(part, Partial) else Partial(part)

    noise = Noise(
        *(wrap(f"noise.{name}", part) for name, part in zip(NOISE, mechanism.noise, strict=True))
    )
    wrapped = {
        name: wrap(name, part) for name, part in mechanism._asdict().items() if name != "noise"
    }
    return type(mechanism)(**wrapped, noise=noise)


def check_prices(phases: Sequence[Phase]) -> None:
    """Calls every phase's guarantee, and refuses what is none.

    Raises: UsageError where a guarantee is no Guarantee, and whatever the guarantees themselves
      raise of settings.
    """
    for mechanism, num_steps in phases:
        try:
            found = mechanism.guarantee(num_steps)
        except (TypeError, AttributeError, KeyError, IndexError) as error:
            raise _error("guarantee", f"ends in {first_line(error)}") from error
        if not isinstance(found, Guarantee):
            raise _error("guarantee", f"returns {_description(found)}")


def check(
    phases: Sequence[Phase],
    data: Data,
    *,
    densities: bool = True,
    begun: Callable[[State], Any] = lambda state: None,
) -> None:
    """Calls every part of every phase with shapes, and refuses what breaks the protocol.

    A phase starts from what the one before it makes public.

    Args:
      densities: whether log_prob and log_ratio are called too; training asks for neither.
      begun: called with the state that the last phase starts in. It can say what that state lacks,
        before a query misses it.

    Raises: UsageError that names the part, what it returns, and what it should. A `DpmfError` of a
      part passes as it is.
    """

    def all_parts(key: jax.Array, data: Data) -> None:
        previous: Any = None
        for place, (mechanism, _) in enumerate(phases, 1):
            state = _call("init", mechanism.init, key, data, previous)
            _require_type("init", state, State)
            if jnp.shape(state.step) != () or jnp.result_type(state.step) != jnp.int32:
                raise _error("init", f"returns a step of {_description(state.step)}")
            if place == len(phases):
                begun(state)
            _check(mechanism, key, data, state, densities=densities)
            previous = state.public

    jax.eval_shape(all_parts, jax.random.key(0), data)


def _check(
    mechanism: Mechanism, key: jax.Array, data: Data, state: State, *, densities: bool
) -> None:
    coins = _call("coins", mechanism.coins, key)
    answer = _call("query", mechanism.query, state, data, coins)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Info)):
        raise _error("query", f"returns {_description(answer)}")
    statistics, info = answer
    if not all(map(_is_number, info)):
        raise _error("query", f"returns an Info of {_description(tuple(info))}")
    response = _call("noise.sample", mechanism.noise.sample, key, statistics)
    if densities:
        for name, arguments in (
            ("log_prob", (response, statistics)),
            ("log_ratio", (response, statistics, statistics)),
        ):
            found = _call(f"noise.{name}", getattr(mechanism.noise, name), *arguments)
            if not _is_number(found):
                raise _error(f"noise.{name}", f"returns {_description(found)}")
    after = _call("update", mechanism.update, state, response, data)
    _require_type("update", after, State)
    _require_same_leaves(state, after)
    _require_type("release", _call("release", mechanism.release, after), Release)


def _require_same_leaves(state: State, after: State) -> None:
    (first, structure), (second, other) = (
        jax.tree.flatten_with_path(tree) for tree in (state, after)
    )
    if structure != other:
        raise _error("update", f"returns a State of another structure: {other}, not {structure}")
    for (path, leaf), (_, now) in zip(first, second, strict=True):
        if (jnp.shape(leaf), jnp.result_type(leaf)) != (jnp.shape(now), jnp.result_type(now)):
            name = jax.tree_util.keystr(path)
            raise _error(
                "update", f"returns {name} as {_description(now)}, not {_description(leaf)}"
            )


def _call(name: str, part: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return protocol.traced_once(part)(*arguments)
    except DpmfError:
        raise
    except Exception as error:  # of a stranger's function: any
        given = f", given {_description(arguments[0])}" if name.startswith("noise.log") else ""
        raise _error(name, f"ends in {first_line(error)}{given}") from error


def _is_number(found: Any) -> bool:
    return (
        isinstance(found, jax.Array | np.ndarray | np.number | float | int)
        and jnp.shape(found) == ()
    )


def _require_type(name: str, found: Any, kind: type) -> None:
    if not isinstance(found, kind):
        raise _error(name, f"returns {_description(found)}")


def _error(name: str, what: str) -> UsageError:
    return UsageError(f"the mechanism's {name} {what}", where=name, fix=f"{name}: {PARTS[name]}")


def first_line(error: Exception) -> str:
    """The kind of an error, and the first line of what it says."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _description(found: Any) -> str:
    """A few words for a value: an array's type and shape, or a type's name with its parts."""
    if isinstance(found, jax.Array | np.ndarray):
        return f"{found.dtype}{list(found.shape)}"
    if isinstance(found, tuple | list):
        name = "" if type(found) in (tuple, list) else type(found).__name__
        return f"{name}({', '.join(map(_description, found))})"
    return "None" if found is None else f"a {type(found).__name__}"
