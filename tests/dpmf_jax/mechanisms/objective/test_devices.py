"""Objective perturbation on two CPU devices: it ends, and with what one device gives."""

import pytest

from tests.cases.processes import python

SHARDED = """
import jax, numpy as np
from dpmf_jax.noise import keys
from dpmf_jax import layout
from dpmf_jax import protocol
from tests.cases import objective as cases

for name in ("passes", "public users", "statistics"):
    mechanism = cases.every()[name]
    released = []
    for num_devices in (1, 2):
        data = layout.make(cases.RATINGS, kind="split", num_devices=num_devices)
        state = layout.replicate(data, cases.begun(mechanism, data))
        after, info = protocol.train(mechanism, keys.from_seed(1), state, data, 1)
        released.append((protocol.factors(after), info))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), *released)
print("equal")
"""


@pytest.mark.seconds
def test_two_devices_release_what_one_does():
    assert python(SHARDED, devices=2).stdout == "equal\n"
