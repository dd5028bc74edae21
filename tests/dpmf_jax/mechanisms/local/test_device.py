"""One user's device: its message is a randomised entry of its own gradient, at a place that ratings
do not choose.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax import layout
from dpmf_jax.kernels import projection
from dpmf_jax.mechanisms.local import device as local_user
from dpmf_jax.mechanisms.local import server
from dpmf_jax.mechanisms.local.device import Coordinate, Message
from dpmf_jax.noise import keys
from dpmf_jax.noise import laws as noise
from dpmf_jax.noise.laws import Report
from tests.cases.local import ITEMS, MAKERS, RANK, RATINGS, USERS, Q, begun, config, gd, gradient_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

DRAWS = 4000


def ratings_of(user: int, padding: int = 3) -> local_user.Ratings:
    own = RATINGS.user == user
    present = np.r_[np.ones(own.sum(), np.float32), np.zeros(padding, np.float32)]
    item = np.r_[RATINGS.item[own], np.zeros(padding, np.int32)]
    value = np.r_[RATINGS.value[own], np.full(padding, 5, np.float32)]  # of padding, to be ignored
    return local_user.Ratings(
        *map(jnp.asarray, (item.astype(np.int32), value.astype(np.float32), present))
    )


def heard(made, state, user: int, randomiser, num: int = DRAWS, *, sent: bool = True) -> Message:
    """So many messages of one user, from one state."""
    announced = server.announce(made.update.args[0], state.public, state.step)
    own = state.private.user_factors[user]
    speak = jax.jit(
        jax.vmap(
            lambda key: local_user.speak(
                announced, randomiser, key, ratings_of(user), own, jnp.bool_(sent)
            )
        )
    )
    return speak(jax.random.split(keys.from_seed(user), num))


def whole_gradient(name: str, state, user: int) -> np.ndarray:
    """Φ∇V, or ∇V, of the printed formula."""
    users, items = np.asarray(state.private.user_factors), np.asarray(state.public.item_factors)
    phi = np.eye(ITEMS)
    if name != "gd":
        law = "sign" if name == "sign" else "gaussian"
        phi = np.asarray(
            projection.entries(
                state.public.words, law, np.arange(Q)[:, None], np.arange(ITEMS)[None], Q
            )
        )
    return phi @ gradient_of(user, users, items)


@pytest.fixture(scope="module")
def data():
    return layout.make(RATINGS, num_devices=1)


@pytest.mark.one_case
@pytest.mark.parametrize("name", MAKERS)
def test_without_noise_the_bit_is_the_clipped_entry_of_the_own_gradient(name, data):
    made = MAKERS[name]()
    state = begun(made, data)
    clip = 0.5 if name == "partition" else 1.0
    for user in (0, 5, USERS - 1):
        (row, column), bit = heard(made, state, user, noise.none(), 200)
        expected = np.clip(whole_gradient(name, state, user)[row, column] / clip, -1, 1)
        np.testing.assert_allclose(bit, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["gd", "gd-dr"])
def test_a_message_is_a_uniform_place_and_a_bit_of_the_printed_probability(name, data):
    made = MAKERS[name]()
    state, rows = begun(made, data), ITEMS if name == "gd" else Q
    said = heard(made, state, 5, made.noise)
    assert isinstance(said, Message)
    assert Message._fields == ("coordinate", "bit")
    assert set(np.unique(said.bit)) == {-1.0, 1.0}
    cell = np.asarray(said.coordinate.row) * RANK + np.asarray(said.coordinate.column)
    count = np.bincount(cell, minlength=rows * RANK)
    assert len(count) == rows * RANK
    assert scipy.stats.chisquare(count).pvalue > 1e-4
    entry = np.clip(whole_gradient(name, state, 5).ravel(), -1, 1)
    p = 0.5 + 0.5 * entry * noise.one_bit_gain(config().epsilon_report)
    ones = np.bincount(cell, weights=np.asarray(said.bit) > 0, minlength=rows * RANK)
    statistic = np.sum((ones - count * p) ** 2 / (count * p * (1 - p)))
    assert scipy.stats.chi2.sf(statistic, rows * RANK) > 1e-4


@pytest.mark.seconds
def test_places_are_the_same_whatever_the_ratings_are(data):
    made = gd()
    state = begun(made, data)
    announced = server.announce(made.update.args[0], state.public, state.step)
    own, key = state.private.user_factors[0], keys.from_seed(3)
    said = [
        local_user.speak(
            announced, made.noise, key, ratings_of(user), own, jnp.bool_(True)
        ).coordinate
        for user in (0, 1, USERS - 1)
    ]
    assert all(place == said[0] for place in said)


def test_a_user_without_ratings_says_a_fair_coin_and_out_of_turn_nothing(data):
    made = gd(epsilon=20.0, num_rounds=1)
    state = begun(made, data)
    ones = int(np.sum(np.asarray(heard(made, state, USERS - 1, made.noise).bit) > 0))
    assert scipy.stats.binomtest(ones, DRAWS, 0.5).pvalue > 1e-4
    assert not np.any(heard(made, state, 5, made.noise, 50, sent=False).bit)


@pytest.mark.seconds
@pytest.mark.one_case
@pytest.mark.parametrize("name", ["gd", "transpose"])
def test_the_server_does_with_messages_what_a_round_does_with_reports(name, data):
    """A round of devices that speak one by one ends where the round of the mechanism does, given
    the same bits.
    """
    made = MAKERS[name]()
    state = begun(made, data)
    announced = server.announce(made.update.args[0], state.public, state.step)
    said = [
        local_user.speak(
            announced,
            made.noise,
            keys.from_seed(user),
            ratings_of(user),
            state.private.user_factors[user],
            jnp.bool_(True),
        )
        for user in range(USERS)
    ]
    messages = jax.tree.map(lambda *leaves: jnp.stack(leaves), *said)
    served = server.update(made.update.args[0], state.public, messages, state.step)
    response = Report(*messages.coordinate, messages.bit, jnp.ones(USERS, bool))
    np.testing.assert_array_equal(
        served.item_factors, made.update(state, response, data).public.item_factors
    )
    nothing = Message(Coordinate(*messages.coordinate), jnp.zeros(USERS))
    unmoved = server.update(made.update.args[0], state.public, nothing, state.step)
    assert np.abs(np.asarray(served.item_factors - unmoved.item_factors)).max() > 0
