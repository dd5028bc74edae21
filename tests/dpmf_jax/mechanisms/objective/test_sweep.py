"""Objective perturbation as a pytree: one compilation for a sweep over its numbers, budgets side by
side.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import layout, protocol
from dpmf_jax.mechanisms.objective import mechanisms as objective
from dpmf_jax.noise import keys
from tests.cases.objective import RATINGS, begun, config, every


@pytest.fixture(scope="module")
def split_data():
    return layout.make(RATINGS, kind="split", num_devices=1)


@pytest.mark.seconds
@pytest.mark.one_case
@pytest.mark.parametrize("name", list(every()))
def test_a_sweep_over_numbers_compiles_once(name, split_data):
    key = keys.from_seed(0)

    def run(**settings):
        mechanism = every(**settings)[name]
        protocol.train(mechanism, key, begun(mechanism, split_data), split_data, 1)

    run()
    before = protocol.train._cache_size(), protocol._init._cache_size()
    run(epsilon=0.2, regularization=0.3, center=2.0, learning_rate=0.01, prior_count=7)
    assert (protocol.train._cache_size(), protocol._init._cache_size()) == before


@pytest.mark.seconds
def test_mechanisms_of_several_budgets_run_side_by_side(split_data):
    made = [objective.public_users(config(epsilon=epsilon)) for epsilon in (0.1, 1.0, 10.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *made)
    key, state = keys.from_seed(0), begun(made[0], split_data)
    together = jax.vmap(
        lambda m: protocol.train(m, key, state, split_data, 1)[0].public.item_factors
    )(stacked)
    for place, mechanism in enumerate(made):
        alone, _ = protocol.train(mechanism, key, state, split_data, 1)
        np.testing.assert_allclose(together[place], alone.public.item_factors, rtol=1e-3, atol=1e-4)
