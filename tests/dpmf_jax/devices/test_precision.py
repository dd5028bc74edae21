"""Products take all bits of a float32, also where an accelerator would by default take fewer (TF32,
bfloat16).
"""

import jax
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.noise import keys
from tests.cases import objective as objective_cases
from tests.zoo import sound as zoo_sound

FULL = jax.lax.Precision.HIGHEST
WITHOUT = ("langevin", "dpsgd", "sketch-dpsgd")  # one rating at a time: no products


def products(jaxpr):
    """Every product of floats in a program, with those of its loops and branches."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield equation
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner)


def traced(mechanism, data, num_steps):
    init_key, key = jax.random.split(keys.from_seed(0))
    begun = jax.make_jaxpr(lambda: protocol.begin(mechanism, init_key, data), return_shape=True)
    start, state = begun()
    steps = jax.make_jaxpr(lambda state: protocol.train(mechanism, key, state, data, num_steps))(
        state
    )
    return [*products(start.jaxpr), *products(steps.jaxpr)]


@pytest.mark.one_case
@pytest.mark.parametrize("kind", ["split", "dense"])
@pytest.mark.parametrize("name", zoo_sound.SOUND)
def test_every_product_of_a_program_is_full_float32(name, kind):
    data = layout.make(zoo_sound.RATINGS, kind=kind, num_devices=1)
    found = traced(zoo_sound.SOUND[name](), data, zoo_sound.steps(name))
    assert bool(found) == (name not in WITHOUT)
    assert [str(one) for one in found if one.params["precision"] not in (FULL, (FULL, FULL))] == []


def test_the_products_of_passes_are_full_float32():
    """Objective perturbation by passes, which the zoo has not."""
    data = layout.make(objective_cases.RATINGS, kind="split", num_devices=1)
    found = traced(objective_cases.every()["passes"], data, 1)
    assert found
    assert [str(one) for one in found if one.params["precision"] not in (FULL, (FULL, FULL))] == []


def test_a_product_that_leaves_the_bits_to_the_device_is_seen():
    matrix = jax.numpy.ones((3, 3))
    plain = jax.make_jaxpr(lambda a: jax.lax.scan(lambda c, _: (c @ a, None), a, length=2)[0])(
        matrix
    )
    [product] = products(plain.jaxpr)
    assert product.params["precision"] is None
