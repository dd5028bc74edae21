"""`layout.INDEX` among the columns is what an array of indices there would give, in every layout
and on two devices.
"""

import subprocess
import sys

TWO_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp
import numpy as np
from dpmf_jax import layout
from dpmf_jax.data import synthetic

many = synthetic.generate(num_users=901, num_items=150, num_ratings=30000)

def sums(row, columns, values, present):
    factors, index = columns
    weight = jnp.cos(1.0 + index + row)
    return (present * values * weight) @ factors, jnp.sum(present * (index == 7))

for kind in ("split", "dense"):
    for number in (1, 2):
        data = layout.make(many, kind=kind, num_devices=number)
        rows, columns = (jnp.arange(count, dtype=jnp.float32) for count in (901, 150))
        factors = {count: jax.random.normal(jax.random.key(count), (count, 8)) for count in (901,
            150)}
        for by, own, other in ((layout.sum_by_user, rows, 150), (layout.sum_by_item, columns, 901)):
            found, expected = (
                jax.jit(lambda data, index: by(data, sums, own, (factors[other], index)))(data,
                    index)
                for index in (layout.INDEX, jnp.arange(other))
            )
            assert float(jnp.sum(found[1])) > 0
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, expected)
            print(kind, number, by.__name__)
"""


def test_the_index_of_columns_is_an_array_of_their_indices():
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 8
