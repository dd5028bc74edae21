"""A run on several devices, or many side by side on several each: every run is what it is alone on
one.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.devices import spread
from tests.cases.processes import python


@pytest.mark.parametrize("rows", [0, 3, 4, 5])
def test_shares_are_filled_up_to_equal_lengths(rows):
    numbers = np.arange(1.0, 1 + 2 * rows, dtype=np.float32).reshape(rows, 2)
    filled = np.asarray(spread._filled(4, {"numbers": jnp.asarray(numbers)})["numbers"])
    assert len(filled) == -(-rows // 4) * 4
    np.testing.assert_array_equal(filled[:rows], numbers)
    assert not filled[rows:].any()


BOTH_AXES = """
import sys
import jax
import numpy as np
from tests.zoo import sound as zoo_sound
from dpmf_jax.noise import keys
from dpmf_jax import layout
from dpmf_jax import protocol
from dpmf_jax.training import sweep

def jobs(mechanism, data, steps):
    for number in range(3):
        init_key, key = jax.random.split(keys.from_seed(number))
        yield sweep.Job(mechanism, key, protocol.begin(mechanism, init_key, data), steps - (
            number == 2))

device_counts = [int(count) for count in sys.argv[1].split(",")]
for words in sys.argv[2:]:
    kind, name = words.split(":")
    mechanism, steps = zoo_sound.SOUND[name](), zoo_sound.steps(name)
    one = layout.make(zoo_sound.RATINGS, kind=kind, num_devices=1)
    alone = [protocol.train(m, key, state, one, n) for m, key, state, n in jobs(mechanism, one,
        steps)]
    for each in device_counts:
        data = layout.make(zoo_sound.RATINGS, kind=kind, num_devices=each)
        found = {}
        if each == 5:  # of 12 users the last device has none
            for number, (m, key, state, n) in enumerate(jobs(mechanism, one, steps)):
                if n == steps:
                    found[number] = protocol.train(m, *layout.replicate(data, (key, state)), data,
                        n)
        else:
            for chunk in sweep.run([*jobs(mechanism, one, steps)], data, chunk_steps=steps):
                found[chunk.job] = chunk.state, chunk.info
            assert len(found) == (3 if steps > 1 else 2)  # the third takes a step less
        for number in found:
            state, info = alone[number]
            expected = jax.device_get((state, jax.tree.map(lambda leaf: leaf[: int(state.step)],
                info)))
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5,
                err_msg=words)
            jax.tree.map(close, expected, found[number])
"""
QUICK = ("split:gaussian-joint-noise", "split:local-gd-dr")  # sums per item, rows per user
REST = (  # others by one of their kind: `test_same_bits` has them all, to the bit
    "dense:gaussian-joint-noise",
    "split:objective-statistics",
    "split:federated-user-dynamic",
    "dense:federated-user-dynamic",
    "split:gaussian, published",
    "split:federated-user",
    "split:federated-statistics",
    "split:local-gd",
    "split:langevin",
)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("devices", "words"),
    [("2,5", QUICK), pytest.param("5", REST, marks=pytest.mark.slow)],
    ids=["quick", "rest"],
)
def test_each_run_is_what_it_is_alone_whatever_devices_it_has(devices, words):
    python(BOTH_AXES, devices, *words, devices=5, timeout=900, quick=words is REST)


TOO_MANY = """
from tests.zoo import sound as zoo_sound
from dpmf_jax import layout
from dpmf_jax.training import sweep
from dpmf_jax.errors import UsageError
data = layout.make(zoo_sound.RATINGS, kind="split", num_devices=4)
try:
    [*sweep.run([], data, num_devices=2)]
except UsageError as error:
    print("refused:", error)
"""


def test_ratings_on_more_devices_than_a_sweep_may_use_are_refused():
    said = python(TOO_MANY, devices=4).stdout
    assert said.startswith("refused: the ratings lie on 4 devices, of which a sweep may use 2")
