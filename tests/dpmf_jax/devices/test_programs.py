"""Programs are let go of before the memory mappings of a process run out."""

import jax
import jax.numpy as jnp
import pytest

import dpmf_jax
from dpmf_jax.devices import programs
from dpmf_jax.mechanisms.user_means import levels
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")


def times(number):
    return jax.jit(lambda x: x * number)


@pytest.fixture
def many():
    """Programs that a process holds on to."""
    made = [times(number) for number in range(30)]
    for one in made:
        one(jnp.ones(3)).block_until_ready()
    return made


def test_programs_give_their_mappings_back_where_there_are_many(many, monkeypatch):
    before = programs._num_mappings()
    programs.make_room()
    assert all(one._cache_size() == 1 for one in many)  # far from the limit nothing is forgotten
    monkeypatch.setattr(programs, "_largest_number", lambda: int(before / programs.SHARE) - 1)
    programs.make_room()
    assert all(one._cache_size() == 0 for one in many)
    assert programs._num_mappings() < before - len(many)
    assert [float(one(jnp.float32(2))) for one in many[:3]] == [0.0, 2.0, 4.0]


def test_the_limit_is_the_systems(monkeypatch):
    assert programs._largest_number() > 1_000
    monkeypatch.setattr("pathlib.Path.read_text", lambda self: "no number")
    assert programs._largest_number() == programs.USUAL


def test_a_fit_makes_room_before_it_compiles(many, monkeypatch):
    monkeypatch.setattr(programs, "_largest_number", lambda: 1)
    config = levels.Config(rating_range=(1.0, 5.0), noise_multiplier=3.0, center=3.0)
    model = dpmf_jax.fit(share(0.5, (10, 6)), levels.mechanism(config), num_steps=1, seed=0)
    assert model.guarantee.status == "proved"
    assert all(one._cache_size() == 0 for one in many)
