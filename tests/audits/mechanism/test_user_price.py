"""What a user pays is for all of the user's ratings; bugs of it are in the zoo."""

import dataclasses

import jax
import pytest
from jax.tree_util import Partial

from accounting import relation
from audits.mechanism import user_price
from dpmf_jax import layout
from tests.zoo.sound import RATINGS, sound, steps

pytestmark = pytest.mark.usefixtures("quick_compilation")


def finding_on(mechanism, name, kind="dense"):
    data = layout.make(RATINGS, kind=kind, num_devices=1)
    [finding] = user_price.audit(
        mechanism, RATINGS, data, key=jax.random.key(0), num_steps=steps(name)
    )
    assert finding.to_dict()
    return finding


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("user-means", "dense"),  # a user's ratings lie in one sum: m²
        ("noisy-item-means", "split"),  # each in another: m
        ("gaussian-public-items", "split"),
        ("objective-statistics", "dense"),
    ],
)
def test_a_users_ratings_reach_what_the_user_pays_and_no_more(name, kind):
    finding = finding_on(sound(name), name, kind)
    assert finding.verdict == "consistent"
    assert 0.95 * finding.claimed < finding.measured
    assert finding.details["replay"]["pair"]["ratings"] > 1


def _small_changes(guarantee, num_steps):
    return dataclasses.replace(guarantee(num_steps), relation=relation.value(1.0))


def test_a_price_of_small_changes_is_held_against_small_ones():
    made = sound("user-means")
    whole = finding_on(made, "user-means").measured
    small = made._replace(guarantee=Partial(_small_changes, made.guarantee))
    assert finding_on(small, "user-means").measured == pytest.approx(whole / 4, rel=0.01)


@pytest.mark.parametrize(
    ("name", "why"), [("means", "the unit is the user"), ("dpsgd", "from a mixture")]
)
def test_where_there_is_no_such_price_it_says_so(name, why):
    finding = finding_on(sound(name), name)
    assert finding.verdict == "not applicable"
    assert why in finding.details["why"]


@pytest.mark.parametrize("name", ["gaussian-public-items", "user-means"])
def test_a_user_of_very_many_ratings_is_held_to_the_price_of_those_that_change(name, monkeypatch):
    monkeypatch.setattr(user_price, "MOST", 2)
    finding = finding_on(sound(name), name)
    assert finding.verdict == "consistent"
    assert finding.measured > 0.95 * finding.claimed
