"""The audit of coins on trial: sound samples are not called violated, by chance neither; what it
promises it sees.
"""

import dataclasses

import jax
import numpy as np
import pytest
from jax.tree_util import Partial

from audits.mechanism import coins, coins_drawn
from dpmf_jax import layout
from dpmf_jax.mechanisms.sampled import langevin
from tests.cases.ratings import share
from tests.zoo.bugs import by_value, chosen, same_coins
from tests.zoo.sound import DATA, RATINGS, SAMPLED, STEPS, sound

pytestmark = pytest.mark.usefixtures("quick_compilation")

RATE = 0.3


def audit(mechanism, data=DATA, seed=0, **options):
    found = coins.audit(
        mechanism, RATINGS, data, key=jax.random.key(seed), num_steps=STEPS, **options
    )
    return {finding.audit.removeprefix("coins: "): finding for finding in found}


def verdicts(found):
    return {name: finding.verdict for name, finding in found.items()}


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["dpsgd", pytest.param("sketch-dpsgd", marks=pytest.mark.slow)])
def test_sound_samples_are_consistent(name):
    found = audit(sound(name))
    assert list(found) == ["both worlds", "rate", "independence", "steps"]
    assert set(verdicts(found).values()) == {"consistent"}
    assert found["rate"].measured == pytest.approx(RATE, abs=0.01)
    assert found["rate"].claimed == pytest.approx(RATE)
    for finding in found.values():
        assert finding.details["power"]
        assert finding.to_dict()["details"]["replay"]["key"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["rating presence", "rating value"])
def test_a_split_layout_has_the_same_verdicts(unit):
    made = langevin.dpsgd(langevin.Config(**SAMPLED, unit=unit))
    found = audit(made, layout.make(RATINGS, kind="split", num_devices=1))
    assert set(verdicts(found).values()) == {"consistent"}


@pytest.mark.seconds
@pytest.mark.parametrize("whole", [True, False])
def test_who_is_seen_in_a_sample_is_who_is_in_it(whole):
    """Against the sampler itself, at the same coins: clipped or not, heavy or light. By removal,
    or by a derivative of floats.
    """
    from dpmf_jax.mechanisms.sampled import sampled

    made = sound("dpsgd") if whole else langevin.mechanism(langevin.Config(**SAMPLED))
    params, state = made.query.args[0], made.init(jax.random.key(1), DATA, None)
    assert coins_drawn.are_whole(made, state, DATA) == whole
    address = layout.locate(DATA, RATINGS.user, RATINGS.item)
    away = 1.0 if whole else 1e-4
    near = coins_drawn.values_near_prediction(state, RATINGS.user, RATINGS.item, away)
    keys = jax.random.split(jax.random.key(2), 3)
    seen = coins_drawn.members(made, state, DATA, address, near, keys, 2, whole=whole)
    seen = np.asarray(seen)
    for run, step in np.ndindex(3, 2):
        key, _ = jax.random.split(jax.random.fold_in(keys[run], step))
        drawn = sampled.sample(params, DATA, made.coins(key))
        inside = set(
            zip(
                *(np.asarray(part)[np.asarray(drawn.present)].tolist() for part in drawn[:2]),
                strict=True,
            )
        )
        pairs = zip(RATINGS.user.tolist(), RATINGS.item.tolist(), strict=True)
        assert [pair in inside for pair in pairs] == seen[run, step].tolist()


@pytest.mark.seconds
def test_a_rating_that_is_what_is_predicted_accuses_nobody():
    """It moves nothing where it is in the sample, and its neighbour's other value does: the coins
    are the same.
    """
    made = langevin.dpsgd(langevin.Config(**SAMPLED, unit="rating value"))
    state = made.init(jax.random.key(0), DATA, None)
    predicted = coins_drawn.values_near_prediction(state, RATINGS.user, RATINGS.item, 0.0)
    some = np.arange(RATINGS.num_ratings) % 3 == 0
    flat = dataclasses.replace(
        RATINGS, value=np.where(some, predicted, RATINGS.value).astype(np.float32)
    )
    data = layout.make(flat, kind="dense", num_devices=1)
    moved = made._replace(init=Partial(_started, state))
    found = coins.audit(
        moved, flat, data, key=jax.random.key(0), num_steps=STEPS, num_neighbours=12
    )
    assert found[0].verdict == "consistent"


def _started(state, key, data, previous):
    del key, data, previous
    return state


def test_of_many_ratings_some_are_followed_that_share_users_and_items():
    many = share(0.5, (40, 60))
    places = coins._some(np.random.default_rng(1), many)
    assert 48 <= len(np.unique(places)) == len(places) <= coins.REMOVED
    user, item = many.user[places], many.item[places]
    assert (np.lexsort((item, user)) == np.arange(len(places))).all()
    assert len(np.unique(user)) < len(places) - 20
    assert len(np.unique(item)) < len(places) - 20


def test_where_nothing_is_sampled_nothing_is_claimed():
    assert set(verdicts(audit(sound("gaussian-joint-noise"))).values()) == {"not applicable"}


@pytest.mark.seconds
def test_samples_by_value_are_seen_and_accuse_no_others():
    """The zoo has samples that are shuffled, taken in turn, or too large."""
    made = langevin.dpsgd(langevin.Config(**SAMPLED, unit="rating value"))
    found = verdicts(audit(chosen(by_value)(made)))
    assert found["both worlds"] == "violated"
    assert found["independence"] == "inconclusive"  # fewer are in than are priced


@pytest.mark.slow
def test_one_key_for_all_steps_is_seen_over_steps_and_over_ratings():
    found = verdicts(audit(same_coins(langevin.dpsgd(langevin.Config(**SAMPLED)))))
    assert found["steps"] == found["independence"] == "violated"


# --- the tests of chance, on arrays


def drawn(in_sample):
    return coins.Coins(in_sample, np.arange(in_sample.shape[-1])[::-1])


def alarms(in_sample, rate=RATE):
    made = drawn(in_sample)
    found = (
        coins._rate(made, rate, {}),
        coins._independence(made, rate, {}),
        coins._steps(made, rate, {}),
    )
    return [finding.verdict == "violated" for finding in found]


def test_independent_coins_are_not_called_violated():
    """900 findings, true in every one, at 1e-4 each: one alarm at most."""
    random = np.random.default_rng(0)
    assert sum(sum(alarms(random.random((20, 6, 30)) < RATE)) for _ in range(300)) <= 1


def test_fixed_sizes_are_seen_from_few_samples():
    """And their rate is right, record by record."""
    random = np.random.default_rng(1)
    place = np.argsort(random.random((20, 6, 30)), axis=-1)
    rate, independence, _ = alarms(place < 9)
    assert not rate
    assert independence


def test_users_who_come_whole_are_seen():
    random = np.random.default_rng(2)
    users = random.random((40, 6, 10)) < RATE
    assert alarms(np.repeat(users, 3, axis=-1))[1]


def test_neighbours_in_the_list_who_come_together_are_seen():
    """One pair in ten, which hardly changes the size of a sample."""
    random = np.random.default_rng(3)
    in_sample = random.random((200, 6, 40)) < RATE
    in_sample[..., 1::10] = in_sample[..., 0::10]
    assert alarms(in_sample)[1]
    made = drawn(in_sample)
    assert coins._independence(made, RATE, {}).details["p_values"]["sizes"] > 1e-4


def test_steps_that_share_their_coins_are_seen():
    random = np.random.default_rng(4)
    in_sample = random.random((60, 6, 30)) < RATE
    in_sample[:, 3:] = in_sample[:, :3]  # not the next step: a later one
    assert alarms(in_sample)[2]


def test_a_rate_above_the_priced_one_is_seen_as_promised():
    """19 of 20 times, as `power` says; a rate below is nobody's loss."""
    random = np.random.default_rng(5)
    shape = (20, 6, 30)
    words = coins._rate(drawn(random.random(shape) < RATE), RATE, {}).details["power"]
    above = float(words.split("above by ")[1].split(" ")[0])
    seen = [
        coins._rate(drawn(random.random(shape) < RATE + above), RATE, {}).verdict for _ in range(60)
    ]
    assert np.mean([verdict == "violated" for verdict in seen]) >= 0.9
    assert coins._rate(drawn(random.random(shape) < RATE / 2), RATE, {}).verdict == "consistent"


@pytest.mark.slow
def test_a_lower_rate_than_priced_is_inconclusive_about_the_rest():
    half = dataclasses.replace(langevin.Config(**SAMPLED), sampling_rate=RATE / 2)
    made = langevin.dpsgd(langevin.Config(**SAMPLED))
    found = verdicts(audit(made._replace(coins=langevin.dpsgd(half).coins)))
    assert found == {
        "both worlds": "consistent",
        "rate": "consistent",
        "independence": "inconclusive",
        "steps": "inconclusive",
    }
