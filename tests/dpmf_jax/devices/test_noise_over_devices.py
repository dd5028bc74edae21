"""One, two and eight devices: the same noise, and the same model but for the order of sums."""

import pytest

from tests.cases.processes import python

SHARDED = """
from functools import partial
import jax
import jax.numpy as jnp
import numpy as np
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.devices import spread
from dpmf_jax.noise import keys
from dpmf_jax import layout
from dpmf_jax.mechanisms.local import gd as local
from dpmf_jax import protocol
from dpmf_jax.data import synthetic
from jax.sharding import NamedSharding

spread.DIVIDED = 0
ratings = synthetic.generate(num_users=26, num_items=15, num_ratings=150, seed=1)
low, high = ratings.rating_range
gauss = gaussian.Config(rating_range=(low, high), noise_multiplier=5.0, rank=4, learning_rate=0.01)
joint_noise = gaussian.joint_noise(gauss)
summed = federated.mechanism(federated.Config(epsilon=0.5, rating_range=(low, high), rank=4))
reports = local.gd(local.Config(epsilon=1.6, num_rounds=4, rank=4, center=3.0))

@jax.jit
def drawn(mechanism, key, state, data):
    # what a step adds to statistics of 0; of reports, what is said of an entry of 0
    statistics, _ = mechanism.query(state, data, mechanism.coins(key))
    nothing = statistics._replace(value=0 * statistics.value) if hasattr(statistics, "sent") else \\
        jax.tree.map(lambda leaf: 0 * leaf, statistics)
    return spread.divided(data.num_devices, partial(mechanism.noise.sample, key), nothing,
        rows=data.num_users)

def same(one, other):
    # the same draw; what a compiler makes of the inverse error function and σ may differ in the
    # last places
    # (nothing with jax 0.10, one unit with 0.8, three with 0.12)
    if one.dtype == np.float32:
        np.testing.assert_array_max_ulp(one, other, maxulp=8)
    else:
        np.testing.assert_array_equal(one, other)

for mechanism in (joint_noise, summed, reports):
    found = []
    for devices in (1, 2, 5) if mechanism is joint_noise else (1, 5):
        data = layout.make(ratings, kind="split", num_devices=devices)
        init_key, key = jax.random.split(keys.from_seed(7))
        state = layout.replicate(data, protocol.begin(mechanism, init_key, data))
        noise = jax.tree.map(np.asarray, drawn(mechanism, key, state, data))
        after, info = protocol.train(mechanism, key, state, data, num_steps=3)
        # or the next steps would be another program
        assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(after))
        found.append((noise, jax.tree.map(np.asarray, (protocol.factors(after), info))))
    (one, model), *others = found
    assert any(np.std(leaf) > 0 for leaf in jax.tree.leaves(one))
    for noise, other in others:
        jax.tree.map(same, one, noise)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), model,
            other)

# a sampler is handed statistics that are cut over the devices: it still draws for logical elements
mesh = spread.mesh(8)
for shape in ((16, 4), (8, 3)):
    whole = jnp.zeros(shape, jnp.uint32)
    cut = jax.device_put(whole, NamedSharding(mesh, spread.CUT))
    sample = jax.jit(joint_noise.noise.sample)
    same(*(np.asarray(sample(keys.from_seed(3), zeros)) for zeros in (whole, cut)))

# each device draws its part, not all of it
def work(devices):
    step = partial(spread.divided, devices, partial(joint_noise.noise.sample, keys.from_seed(3)))
    return jax.jit(step).lower(jnp.zeros((401, 20), jnp.uint32)).compile().cost_analysis()["flops"]
assert work(8) < work(2) / 3 < work(1) / 5, (work(8), work(2), work(1))
"""


@pytest.mark.seconds
def test_noise_is_drawn_for_elements_and_not_for_devices():
    python(SHARDED, devices=8)
