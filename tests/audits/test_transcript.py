"""A run that is written down in blocks is the run."""

import itertools

import jax
import numpy as np
import pytest

from audits import transcript
from dpmf_jax import layout, protocol
from tests.cases.audits import RATINGS, joint

pytestmark = pytest.mark.usefixtures("quick_compilation")
DATA = layout.make(RATINGS, kind="dense")


@pytest.mark.parametrize(("steps", "lengths"), [(6, [6]), (36, [18, 18]), (37, [32, 5])])
def test_blocks_are_the_run(steps, lengths, key):
    made = joint()
    blocks = list(transcript.blocks(made, key, DATA, steps))
    assert [len(jax.tree.leaves(block.responses)[0]) for block in blocks] == lengths
    init_key, train_key = jax.random.split(key)
    state = protocol.begin(made, init_key, DATA)
    whole, _ = protocol.train(made, train_key, state, DATA, steps)
    for ours, theirs in zip(*map(jax.tree.leaves, (blocks[-1].end, whole)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for before, after in itertools.pairwise(blocks):
        jax.tree.map(np.testing.assert_array_equal, before.end, after.start)
    first = transcript.record(made, key, DATA, steps)
    jax.tree.map(np.testing.assert_array_equal, first, blocks[0])


def test_a_long_run_is_followed_to_a_limit(key, monkeypatch):
    monkeypatch.setattr(transcript, "LONGEST", 40)
    blocks = transcript.blocks(joint(), key, DATA, 1_000)
    assert sum(len(jax.tree.leaves(block.responses)[0]) for block in blocks) == 40
