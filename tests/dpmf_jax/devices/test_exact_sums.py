"""No float of what is released depends on the program: it has the same bits on any machine.

A GPU adds in whatever order its threads come, unless a flag makes it slow. Where a float sum is of
whole numbers that are at most 2^24 together, every order gives the same. A compiler may round a
product and the sum that takes it at once, or one after the other: where the product is exact, or
rounded before (`steady.apart`), both give the same. That is looked at here number by number, in the
programs of query and update, with all that is not released cut out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from dpmf_jax import layout, protocol
from dpmf_jax.devices import spread
from dpmf_jax.kernels import steady
from dpmf_jax.noise import keys
from tests.zoo.sound import RATINGS, sound

pytestmark = pytest.mark.usefixtures("quick_compilation")

WHOLE = (
    ("gaussian-joint-noise", "dense"),
    ("gaussian-joint-noise", "split"),
    ("gaussian-public-items", "split"),
    ("noisy-item-means", "dense"),
    ("user-means", "split"),
    ("dpsgd", "split"),  # langevin has its query
    ("sketch-dpsgd", "split"),
    ("objective-public-users", "dense"),
    ("objective-statistics", "dense"),
    ("objective-statistics", "split"),
    ("als-counts", "split"),
    ("als-means", "dense"),
    ("als-means", "split"),
    ("als-factors", "dense"),
    ("als-factors", "split"),
    ("als-federated", "split"),
    ("als-implicit", "dense"),
    ("als-implicit", "split"),
    ("ridge", "split"),
)
LARGEST = 2.0**24  # up to which float32 has every whole number


class Inexact(AssertionError):
    """A float that may depend on the program."""


def check(name: str, values: list[np.ndarray], params: dict) -> None:
    """Raises: Inexact for a sum of floats that are not whole, or are too many."""
    floats = [np.asarray(v, np.float64) for v in values if v.dtype == np.float32]
    if not floats:
        return
    sizes = [np.abs(part) for part in floats]
    if name == "dot_general":
        both = _product(*sizes, params["dimension_numbers"])
    elif name == "reduce_sum":
        both = sizes[0].sum(axis=tuple(params["axes"]))
    else:
        both = sum(part.sum() for part in sizes)
    most = float(np.max(both, initial=0.0))
    if any((part != np.round(part)).any() for part in floats) or most > LARGEST:
        raise Inexact(f"{name} of {[part.shape for part in floats]}, at most {most:g}")


def _product(left: np.ndarray, right: np.ndarray, numbers) -> np.ndarray:
    (contracted, other), (batched, other_batched) = numbers
    names = iter(range(left.ndim + right.ndim))
    of_left = [next(names) for _ in range(left.ndim)]
    of_right = [next(names) for _ in range(right.ndim)]
    for one, two in zip((*contracted, *batched), (*other, *other_batched), strict=True):
        of_right[two] = of_left[one]
    kept = [name for axis, name in enumerate(of_left) if axis not in contracted]
    kept += [n for axis, n in enumerate(of_right) if axis not in (*other, *other_batched)]
    return np.einsum(left, of_left, right, of_right, kept)


@pytest.fixture
def watched(monkeypatch):
    """Every float sum that is run one by one is checked; how many there were."""
    seen = []
    for primitive in {
        jax.lax.reduce_sum_p,
        jax.lax.dot_general_p,
        jax.lax.scatter_add_p,
        jax.lax.cumsum_p,
    }:
        own = primitive.impl

        def impl(*values, own=own, name=primitive.name, **params):
            check(name, [np.asarray(value) for value in values], params)
            seen.append(name)
            return own(*values, **params)

        monkeypatch.setattr(primitive, "impl", impl)
    watch_products(monkeypatch, seen)
    return seen


# What a compiler looks through, between a product and a sum.
MOVED = ("broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "gather", "neg", "pad")
MOVED += ("reshape", "slice", "squeeze", "transpose")


def watch_products(monkeypatch, seen):
    """A sum of a product that float32 has to round is an error."""
    rounded = {}  # by identity, and kept, so that no other array gets it

    def products(values):
        return [value for value in values if rounded.get(id(value)) is value]

    def is_exact(left, right, found):
        left, right, found = (np.asarray(part, np.float64) for part in (left, right, found))
        return np.array_equal(left * right, found, equal_nan=True)

    def multiply(own, values, params):
        found = own(*values, **params)
        if found.dtype == jnp.float32 and not is_exact(*values, found):
            rounded[id(found)] = found
        return found

    def move(own, values, params):
        found = own(*values, **params)
        if products(values):
            rounded[id(found)] = found
        return found

    def add(own, values, params):
        seen.append("add")
        if products(values):
            raise Inexact(f"a product that is rounded goes into a sum, {values[0].shape}")
        return own(*values, **params)

    ways = dict.fromkeys(MOVED, move) | {"mul": multiply, "add": add, "sub": add}
    for name, way in ways.items():
        primitive = getattr(jax.lax, f"{name}_p")

        def impl(*values, own=primitive.impl, way=way, **params):
            return way(own, values, params)

        monkeypatch.setattr(primitive, "impl", impl)


def run(function, *arguments):
    """function(*arguments) primitive by primitive, without what its results do not need."""
    flat, structure = jax.tree.flatten(arguments)
    closed = jax.make_jaxpr(lambda *leaves: function(*jax.tree.unflatten(structure, leaves)))(*flat)
    needed, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    kept = [leaf for leaf, use in zip(flat, used, strict=True) if use]
    with jax.disable_jit():
        return jax.core.eval_jaxpr(needed, closed.consts, *kept)


def programs(mechanism, kind):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    key = keys.from_seed(0)
    state = protocol.begin(mechanism, key, data)
    coins = mechanism.coins(key)
    statistics, _ = jax.jit(mechanism.query)(state, data, coins)
    response = jax.jit(mechanism.noise.sample)(key, statistics)
    state = jax.jit(mechanism.update)(state, response, data)
    return (
        lambda: run(lambda state, data: mechanism.query(state, data, coins)[0], state, data),
        lambda: run(
            lambda state, response: mechanism.release(mechanism.update(state, response, data)),
            state,
            response,
        ),
    )


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "kind"), WHOLE)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])  # of which the programs are
def test_what_is_released_does_not_depend_on_the_program(name, kind, backend, watched, monkeypatch):
    monkeypatch.setattr(spread, "backend", lambda: backend)
    query, update = programs(sound(name), kind)
    query()
    assert "reduce_sum" in watched or "dot_general" in watched
    if not name.startswith("objective"):  # these solve systems by floats, of what is noisy
        update()


@pytest.mark.parametrize("kind", ["dense", "split"])
def test_float_sums_are_seen(kind, watched):
    """As published, sums are of floats; and of whole numbers that are too large."""
    query, _ = programs(sound("gaussian, published"), kind)
    with pytest.raises(Inexact):
        query()
    large = jnp.full((5, 2), 2.0**12)
    with jax.disable_jit():
        jnp.sum(large[0])
        with pytest.raises(Inexact):
            jnp.matmul(large, large.T)
        with pytest.raises(Inexact):
            jnp.zeros(3).at[jnp.array([1, 1])].add(0.5)


def test_products_that_sums_take_are_seen(watched):
    """Unless they are exact, or rounded on the way, here by the bits of an integer."""
    third, zero = jnp.full((2, 3), 1 / 3), jnp.int32(0)
    with jax.disable_jit():
        jnp.sum(third[0, 0] * 2 + third)  # doubled exactly
        steady.apart(zero, third * third) + third
        jnp.maximum(third * third, 0) + third
        for moved in (jnp.transpose, jnp.negative, lambda product: product[:1]):
            with pytest.raises(Inexact):
                1 + moved(third * third)
