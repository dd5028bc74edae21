"""The search for the worst neighbour: what lies near a bad one is found, and a value inside the
range too.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from audits.mechanism import sensitivity
from dpmf_jax import layout
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.noise import keys
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

RANGE = (1.0, 5.0)
USERS, ITEMS = 40, 25
CONFIG = gaussian.Config(
    rating_range=RANGE,
    noise_multiplier=8.0,
    rank=3,
    learning_rate=0.001,
    clip_norm=0.25,
    center=3.0,
)


RATINGS = share(0.6, (USERS, ITEMS))
RATINGS = dataclasses.replace(RATINGS, value=np.full_like(RATINGS.value, 2.0))


def heavier(weight, mechanism):
    """The mechanism whose query also says what `weight` makes of all raw values, on the first
    entry.
    """

    def query(state, data, coins):
        statistics, info = mechanism.query(state, data, coins)
        leaves, structure = jax.tree.flatten(statistics)
        leaves[0] = leaves[0].at[0, 0].add(jnp.sum(weight(data)))
        return jax.tree.unflatten(structure, leaves), info

    return mechanism._replace(query=Partial(query))


def of_one_user(data):
    """One user's ratings count more and more over its items."""
    row = data.stored.value[7] * data.stored.present[7]
    return row * 0.3 * (1 + jnp.arange(ITEMS))


def inside(data):
    """Largest at 3, and 0 at both ends and at 2."""
    value = data.stored.value
    return 50.0 * jnp.where(
        data.stored.present & (value > 2.5), jnp.exp(-4 * (value - 3.2) ** 2), 0.0
    )


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, kind="dense", num_devices=1)


def audit(made, data, **settings):
    """Of the pairs that are searched for; those beyond them are `test_sensitivity`'s."""
    settings = {"key": keys.from_seed(0), "num_steps": 2, "beyond": False} | settings
    return sensitivity.audit(made, RATINGS, data, **settings)[0]


@pytest.mark.seconds
def test_what_is_near_a_bad_pair_is_tried(data):
    """A few neighbours hardly meet the worst of one user's ratings; from any of that user's it is
    found.
    """
    made = heavier(of_one_user, gaussian.mechanism(CONFIG))
    everything = audit(made, data, num_neighbours=9_999, climb=False)
    assert everything.details["replay"]["pair"]["user"] == 7
    blind, greedy = (
        audit(made, data, num_neighbours=60, num_rounds=rounds, climb=False) for rounds in (0, 2)
    )
    assert greedy.measured == pytest.approx(everything.measured)
    assert blind.measured < everything.measured
    assert greedy.details["pairs"] > blind.details["pairs"] == 60
    assert greedy.details["replay"]["pair"]["chosen"] == "near the worst so far"


@pytest.mark.seconds
def test_a_value_inside_the_range_is_climbed_to(data):
    made = heavier(inside, gaussian.mechanism(CONFIG))
    blind, climbed = (audit(made, data, num_neighbours=8, climb=climb) for climb in (False, True))
    assert blind.verdict == "consistent"
    assert climbed.verdict == "violated"
    pair = climbed.details["replay"]["pair"]
    assert pair["chosen"] == "climbed to"
    assert float(pair["change"].removeprefix("rating set to ")) == pytest.approx(3.2, abs=0.1)


@pytest.mark.seconds
def test_the_search_calls_nothing_sound_violated_and_the_bound_is_reached(data):
    found = audit(gaussian.joint_noise(CONFIG), data, num_neighbours=16, num_rounds=3)
    assert found.verdict == "consistent"
    assert found.details["ratio"] <= 1 + 1e-5


@pytest.mark.seconds
@pytest.mark.parametrize("unit", ["rating presence", "user"])
def test_of_what_has_no_value_none_is_climbed_to(unit, data):
    made = gaussian.joint_noise(
        dataclasses.replace(CONFIG, relation="rating presence", residual_clip=1.0)
    )
    found = audit(made, data, num_neighbours=8, unit=unit)
    assert found.details["pairs"] <= 16 + sensitivity.CLIMBED  # which are added, not climbed to
    assert found.details["replay"]["pair"]["chosen"] != "climbed to"
