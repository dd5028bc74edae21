"""What is public and looks at the ratings is caught, to the last bit."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from audits.mechanism import post_processing
from dpmf_jax import layout, protocol
from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from tests.cases.audits import CONFIG, RATINGS, joint, run, verdicts, violated
from tests.zoo.sound import sound

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense")


def _leaky_update(update, state, response, data):
    state = update(state, response, data)
    total = jnp.sum(layout.stored_values(data)[0])
    return state._replace(
        public=state.public._replace(user_factors=state.public.user_factors + 1e-3 * total)
    )


@pytest.mark.seconds
def test_a_public_state_that_looks_at_the_ratings_is_caught(data, key):
    """By name of the leaf; other such bugs are in the zoo."""
    mechanism = joint()
    wrapped = mechanism._replace(update=Partial(_leaky_update, mechanism.update))
    findings = run(post_processing.audit, wrapped, data, key)
    assert violated(findings) == {"post-processing", "release"}
    broken = next(finding for finding in findings if finding.verdict == "violated")
    assert "user_factors" in broken.details["replay"]["leaf"]
    assert broken.measured > 0


def _private_release(state):
    return protocol.Release(state.public.user_factors, state.private.item_factors)


@pytest.mark.seconds
def test_a_release_of_the_private_part_is_caught(data, key):
    mechanism = gaussian.mechanism(CONFIG)._replace(
        release=_private_release
    )  # a plain function will do
    findings = run(post_processing.audit, mechanism, data, key)
    assert violated(findings) == {"release"}
    assert findings[2].details["leaves"] == [".item_factors"]


def test_the_published_user_factors_are_post_processing_all_the_same(data, key):
    """What is public looks at the ratings through the response alone; it is the response that says
    too much.
    """
    findings = run(
        post_processing.audit, gaussian.mechanism(CONFIG), data, key
    )  # centred by unpriced item means
    assert set(verdicts(findings).values()) == {"consistent"}


def test_differences_sees_single_bits_and_names_the_leaf():
    tree = {"a": np.zeros((3, 2), np.float32), "b": np.ones(3, np.float32)}
    assert post_processing.differences(tree, tree, steps=True) == []
    other = {"a": tree["a"].copy(), "b": tree["b"]}
    other["a"][1, 1] = -0.0
    assert post_processing.differences(tree, other, steps=True) == [("['a']", 1, 0.0)]
    assert post_processing.differences(tree, {"a": tree["a"]})[0][0] == "the tree's structure"
    assert "type" in post_processing.differences(tree, {**tree, "b": np.ones(3)})[0][0]
    hidden = {**tree, "b": np.full(3, np.nan, np.float32)}
    assert post_processing.differences(hidden, hidden) == []


def _by_slots(update, state, response, data):
    state = update(state, response, data)
    slots = layout.stored_values(data)[0].size
    return state._replace(
        public=state.public._replace(item_factors=state.public.item_factors * (1 + slots / 2**16))
    )


@pytest.mark.seconds
def test_padding_that_follows_the_users_is_caught_where_no_neighbour_has_another(key):
    """Half of the ratings take fewer slots; one user less takes as many."""
    mechanism, ratings = (
        sound("objective-statistics"),
        synthetic.generate(num_users=60, num_items=40, num_ratings=900, rank=3),
    )
    data = layout.make(ratings, kind="split", num_devices=1)
    wrapped = mechanism._replace(update=Partial(_by_slots, mechanism.update))
    for made, found in ((mechanism, set()), (wrapped, {"post-processing", "release"})):
        findings = post_processing.audit(made, ratings, data, key=key, num_steps=1)
        assert violated(findings) == found
    pair = findings[1].details["replay"]["pair"]
    assert "every second" in pair["change"]
