"""A part of the wrong shape is named, with what it should return, before anything runs."""

import functools

import jax.numpy as jnp
import pytest
from jax.tree_util import Partial

import audits
from dpmf_jax import parts
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.noise import keys, whole
from dpmf_jax.noise.laws import Noise
from dpmf_jax.protocol import State
from dpmf_jax.training import fit as fitting
from tests.zoo.sound import DATA, RATINGS, SOUND, joint, sound, steps

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.one_case
@pytest.mark.parametrize("name", SOUND)
def test_what_keeps_to_the_protocol_passes(name):
    parts.check_prices([(sound(name), steps(name))])
    parts.check([(sound(name), steps(name))], DATA)


def replaced(part, returned):
    return lambda made: made._replace(**{part: lambda *arguments: returned})


def bare_query(made):
    return made._replace(query=lambda state, data, coins: made.query(state, data, coins)[0])


def noise_of(**change):
    return lambda made: made._replace(noise=made.noise._replace(**change))


def other_update(change):
    def plant(made):
        return made._replace(
            update=lambda state, response, data: change(made.update(state, response, data))
        )

    return plant


def single_response(made):
    return noise_of(sample=lambda key, statistics: made.noise.sample(key, statistics)[0])(made)


def unknown_name(made):
    return made._replace(query=lambda state, data, coins: state.public.no_such_name)


BROKEN = {
    "init without a State": (replaced("init", jnp.zeros(3)), "init", "float32[3]"),
    "init with a step of no type": (
        replaced("init", State((), (), jnp.float32(0))),
        "init",
        "step of float32[]",
    ),
    "query without Info": (bare_query, "query", "uint32[12, 3]"),
    "query of a bare number": (replaced("query", jnp.float32(1)), "query", "float32[]"),
    "query of a name that is not there": (unknown_name, "query", "AttributeError"),
    "query of two arguments": (
        lambda made: made._replace(query=lambda state, data: None),
        "query",
        "TypeError",
    ),
    "coins that end in an error": (
        lambda made: made._replace(coins=lambda: None),
        "coins",
        "TypeError",
    ),
    "response of another structure": (single_response, "noise.log_prob", "given uint32[12, 3]"),
    "log_ratio of many numbers": (
        noise_of(log_ratio=lambda response, statistics, other: response[0]),
        "noise.log_ratio",
        "uint32[12, 3]",
    ),
    "update without a State": (replaced("update", jnp.zeros(3)), "update", "float32[3]"),
    "update of another type": (
        other_update(
            lambda state: state._replace(public=state.public._replace(center=jnp.int32(3)))
        ),
        "update",
        "int32[]",
    ),
    "update of another structure": (
        other_update(lambda state: state._replace(private=(1,))),
        "update",
        "structure",
    ),
    "release of bare arrays": (replaced("release", (jnp.zeros(3),)), "release", "(float32[3])"),
    "guarantee of a number": (replaced("guarantee", 1.0), "guarantee", "float"),
    "a part that is no function": (lambda made: made._replace(query=3), "query", "no function"),
    "noise that is a function": (
        lambda made: made._replace(noise=lambda key: key),
        "noise",
        "a function",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("where", ["audit", "fit"])
def test_the_part_is_named_with_what_it_should_return(name, where):
    plant, part, told = BROKEN[name]
    if where == "fit" and part.startswith("noise.log"):
        pytest.skip("training asks for no density")
    made = plant(joint())
    audit = functools.partial(audits.audit, key=keys.from_seed(0), only=["sensitivity"])
    run = (
        audit
        if where == "audit"
        else lambda mechanism, ratings, **how: fitting.fit(ratings, mechanism, seed=0, **how)
    )
    with pytest.raises(UsageError) as caught:
        run(made, RATINGS, num_steps=2)
    assert caught.value.what.startswith(f"the mechanism's {part} ")
    assert told in caught.value.what, caught.value.what
    assert caught.value.where == part
    assert caught.value.fix == f"{part}: {parts.PARTS[part]}"
    assert "\n" not in caught.value.what


def test_what_is_no_mechanism_is_refused():
    for made in (tuple(joint()), None, joint().noise):
        with pytest.raises(UsageError, match=r"a mechanism is a dpmf_jax\.protocol\.Mechanism"):
            parts.as_pytree(made)


def test_errors_of_our_own_are_left_as_they_are():
    def refuses(*arguments):
        raise PrivacyError("not so", fix="otherwise")

    made = joint()._replace(query=Partial(refuses))
    with pytest.raises(PrivacyError, match="not so"):
        parts.check([(parts.as_pytree(made), 2)], DATA)


def test_a_later_phase_starts_from_what_the_first_makes_public():
    with pytest.raises(UsageError, match="the mechanism's init ends in AttributeError"):
        parts.check([(parts.as_pytree(bare_center()), 2), (sound("gaussian-joint-noise"), 2)], DATA)


def bare_center():
    """Its public state has no centre to go on from."""
    made = joint()

    def init(key, data, previous):
        return State((), (), jnp.int32(0))

    def query(state, data, coins):
        return (jnp.zeros(3),), made.query(made.init(keys.from_seed(0), data, None), data, coins)[1]

    return made._replace(
        init=init,
        query=query,
        update=lambda state, response, data: state,
        release=lambda state: made.release(made.init(keys.from_seed(0), DATA, None)),
    )


@pytest.mark.seconds
def test_plain_functions_train_as_partials_do():
    made = joint()
    plain = made._replace(
        query=lambda state, data, coins: made.query(state, data, coins),
        noise=Noise(*whole.rounded_normal(3.0)),
    )
    assert (
        fitting.fit(RATINGS, plain, num_steps=2, seed=0).guarantee == made.guarantee(2).with_seed()
    )
