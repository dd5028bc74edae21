"""The silent control: the same program without noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import protocol
from dpmf_jax.mechanisms.federated import published as federated
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.noise import keys
from tests.cases.membership import (
    DATA,
    sound,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.seconds
def test_the_control_has_no_noise_in_what_it_releases():
    made = [
        sound(),
        objective.public_users(
            objective.Config(rating_range=(1.0, 5.0), epsilon=1.0, prior_count=20, rank=3)
        ),
    ]
    for mechanism in made:
        quiet = silent(mechanism)
        states = [mechanism.init(keys.from_seed(1), DATA, None)] * 2
        released = [
            quiet.release(protocol.train(quiet, keys.from_seed(seed), state, DATA, 1)[0])
            for seed, state in enumerate(states)
        ]
        for one, two in zip(
            jax.tree.leaves(released[0]), jax.tree.leaves(released[1]), strict=True
        ):
            np.testing.assert_array_equal(one, two)
        noisy = mechanism.release(
            protocol.train(mechanism, keys.from_seed(0), states[0], DATA, 1)[0]
        )
        assert not np.array_equal(noisy.item_factors, released[0].item_factors)


@pytest.mark.seconds
@pytest.mark.parametrize("make", [federated.per_user, federated.statistics])
def test_the_control_of_a_crowd_has_no_noise_whatever_its_law(make):
    """Of whole numbers mod 2^32 too, whose law has no scale to set to 0: two keys, one response."""
    mechanism = make(
        federated.Config(epsilon=1.0, rating_range=(1.0, 5.0), rank=3, center=3.0, num_iterations=4)
    )
    state = mechanism.init(keys.from_seed(0), DATA, None)
    statistics = mechanism.query(state, DATA, mechanism.coins(keys.from_seed(1)))[0]

    def said(made, seed):
        return jax.tree.leaves(made.noise.sample(keys.from_seed(seed), statistics))

    def same(made):
        return all(np.array_equal(a, b) for a, b in zip(said(made, 2), said(made, 3), strict=True))

    assert same(silent(mechanism))
    assert not same(mechanism)


def test_the_control_is_the_same_program_on_other_numbers():
    """So nothing is compiled for it: the same functions, shapes and types."""
    settings = {"rating_range": (1.0, 5.0), "rank": 3}
    made = [
        sound(),
        objective.public_users(objective.Config(epsilon=1.0, prior_count=20, **settings)),
        federated.mechanism(federated.Config(epsilon=1.0, **settings)),
    ]
    for mechanism in made:
        quiet = silent(mechanism)
        assert jax.tree.structure(quiet) == jax.tree.structure(mechanism)
        leaves = list(zip(jax.tree.leaves(quiet), jax.tree.leaves(mechanism), strict=True))
        assert all(jax.typeof(jnp.asarray(a)) == jax.typeof(jnp.asarray(b)) for a, b in leaves)
        assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in leaves)
