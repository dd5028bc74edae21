"""Budgets of one's own: a message keeps to its user's clip, and estimates stay unbiased."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import accounting
from accounting import guarantee as guarantees
from audits.mechanism import sensitivity
from dpmf_jax import layout, protocol
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.mechanisms.als import budgets
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.mechanisms.silent import silent
from dpmf_jax.noise import keys
from tests.cases.als_messages import (
    ITEMS,
    MEANS,
    USERS,
    catalogue_ratings,
    config,
    lengths,
    only,
    public_states,
    ratings,
    signed,
    statistics,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

DELTA = 1e-5
EPSILONS = np.where(np.arange(USERS) % 3 == 1, 0.8, 8.0)


def declared(epsilons=EPSILONS, **change):
    """(config, the group of each user)."""
    table, group = budgets.declared(epsilons, DELTA)
    least = min(one.noise_multiplier for one in table)
    return config(noise_multiplier=least, budgets=table, **change), group


def ignoring_groups(query, params, state, data, coins):
    """The clip of the largest budget for everybody."""
    groups = params.groups
    longest = jnp.broadcast_to(jnp.max(groups.clip, axis=1, keepdims=True), groups.clip.shape)
    own = groups._replace(clip=longest, share=jnp.ones_like(groups.share))
    return query(dataclasses.replace(params, groups=own), state, data, coins)


def planted(mechanism):
    query = mechanism.query
    return mechanism._replace(query=Partial(partial(ignoring_groups, query.func), *query.args))


@pytest.mark.seconds
@pytest.mark.parametrize("change", [MEANS, {}])
def test_everybody_is_held_to_a_clip_of_their_own(change):
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    made, group = declared(**change)
    longest = []
    for mechanism, public in public_states(als.phases(made, None, group), data):
        clips = np.asarray(mechanism.query.args[0].groups.whole_clip)[0, group]
        longest.append(lengths(mechanism, public, data, of) / clips)
        # the clip of a group is what its guarantee is priced for
        guarantee = mechanism.guarantee(1)
        sigma = guarantee.noise_multiplier * guarantee.sensitivity
        for own in set(group.tolist()):
            loss = guarantee.groups[own].losses[0]
            assert sigma / loss.noise_multiplier == pytest.approx(clips[group == own][0], rel=1e-6)
    longest = np.array(longest)
    assert longest.max() <= 1
    for own in set(group.tolist()):
        assert longest[:, group == own].max() > 0.99
    *_, (last, _) = als.phases(made, None, group)
    moved = lengths(planted(last), public, data, of)
    assert (moved > clips)[group == 0].any()  # so a clip that ignores the group is seen


@pytest.mark.seconds
@pytest.mark.parametrize("bug", [False, True])
def test_the_audit_holds_every_user_to_a_clip_of_their_own(bug):
    """The planted one keeps everybody to the largest clip, which the others' Δ does not allow."""
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    made, group = declared(**MEANS)
    counts, (means, num_steps) = als.phases(made, None, group)
    means = protocol.link((counts, (means, num_steps)), keys.from_seed(0), data)[-1]
    held = {"key": keys.from_seed(1), "num_steps": num_steps, "num_neighbours": USERS}
    audited = planted(means) if bug else means
    found = sensitivity.audit(audited, of, data, group=group, **held)
    assert {one.verdict for one in found} == ({"violated"} if bug else {"consistent"})
    assert max(one.details["ratio"] for one in found) > 0.98
    if bug:  # nobody is beyond the largest clip
        blind = sensitivity.audit(audited, of, data, **held)
        assert {one.verdict for one in blind} == {"consistent"}


@pytest.mark.seconds
def test_a_smaller_budget_sends_the_same_message_shorter():
    """Every sum takes from a user what it would at the largest budget, times her share of it."""
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    made, group = declared(gram_share=0.2)  # of fine units
    share = budgets.shares(made.budgets)[0]
    for mechanism, public in public_states(als.phases(made, None, group), data):
        for user in (2, 3, 5, 7):
            own = layout.make(only(of, of.user == user), kind="dense", num_devices=1)
            both = []
            for place in (0, 1):
                args = mechanism.query.args[0]
                groups = args.groups._replace(of_user=jnp.full(USERS, place))
                query = Partial(mechanism.query.func, dataclasses.replace(args, groups=groups))
                both.append(statistics(mechanism._replace(query=query), public, own))
            for less, full in zip(*both, strict=True):
                less, full = signed(less), signed(full)
                room = 1 + 0.05 * np.abs(full).max() * share  # of rounding, left in either clip
                np.testing.assert_allclose(less, share * full, atol=room)


@pytest.mark.seconds
def test_equal_budgets_are_the_program_without_them_to_the_bit():
    of = ratings()
    data = layout.make(of, kind="dense", num_devices=1)
    made, group = declared(np.full(USERS, 3.0), **MEANS)
    plain = dataclasses.replace(made, budgets=())
    runs = als.phases(made, None, group), als.phases(plain)
    states = []
    for phases in runs:
        *earlier, (last, num_steps) = phases
        state = protocol.begin(last, keys.from_seed(0), data, earlier)
        states.append(protocol.train(last, keys.from_seed(1), state, data, num_steps)[0])
    for one, two in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(one, two)
    both = [
        accounting.compose(*(one.guarantee(num) for one, num in phases), same_groups=True)
        for phases in runs
    ]
    assert both[0].epsilon == both[1].epsilon == both[0].groups[0].epsilon


@pytest.mark.parametrize("relation", ["user added or removed", "user replaced"])
def test_everybody_pays_what_they_declared(relation):
    epsilons = np.array([0.3, 1.0, 1.0, 4.0] * 5)
    made, group = declared(epsilons, relation=relation)
    phases = als.phases(made, None, group)
    whole = accounting.compose(
        *(mechanism.guarantee(num) for mechanism, num in phases), same_groups=True
    )
    assert [group.num_users for group in whole.groups] == [5, 10, 5]
    for paid, asked in zip(whole.groups, (0.3, 1.0, 4.0), strict=True):
        assert 0.99 * asked < paid.epsilon <= asked
    assert whole.epsilon == whole.groups[-1].epsilon
    how = "replaced" if relation == "user replaced" else "added or removed"
    for of, asked in zip(whole.groups, (0.3, 1.0, 4.0), strict=True):
        line = f"(rounded up), δ = 1e-05: one user, of {of.num_users} in the group, {how}"
        assert f"ε = {of.epsilon:.4f} {line}" in " ".join(str(whole).split())
        assert f"{of.epsilon:.2f}" == f"{asked:.2f}"
    assert "who declared which is not hidden" in " ".join(str(whole).split())
    assert guarantees.Guarantee.from_dict(whole.to_dict()) == whole
    # of several releases nobody's group is known to be the same
    assert accounting.compose(whole, whole).groups == ()
    smaller = whole.at_delta(1e-6)
    assert all(b.epsilon > a.epsilon for a, b in zip(whole.groups, smaller.groups, strict=True))


def test_a_group_below_its_price_is_no_guarantee():
    made, group = declared()
    whole = als.phases(made, None, group)[0][0].guarantee(1)
    first, *others = whole.groups
    for wrong in (
        first._replace(epsilon=first.epsilon / 2),
        first._replace(epsilon=2 * whole.epsilon),
        first._replace(losses=()),
        first._replace(num_users=0),
    ):
        with pytest.raises(ValueError, match="group"):
            dataclasses.replace(whole, groups=(wrong, *others))


def slope(made, phases, of, data, expected):
    """How far the first pass moves means, for one that they should move."""
    (counts, _), (means, _) = [(silent(one), num) for one, num in phases][:2]
    state = protocol.begin(means, keys.from_seed(0), data, [(counts, 1)])
    moved = protocol.train(means, keys.from_seed(1), state, data, 1)[0].public.means
    said = np.asarray(moved.total / moved.precision)
    return float(np.polyfit(expected, said, 1)[0])


@pytest.mark.seconds
def test_means_are_unbiased_where_half_have_a_tenth_of_the_budget():
    """Without noise a pass says of an item what its raters say, whatever their budgets."""
    random = np.random.default_rng(0)
    truth = random.normal(size=ITEMS) / 2
    user, item = np.nonzero(np.ones((USERS, ITEMS)))
    of = catalogue_ratings(user, item, (3 + truth[item]).astype(np.float32))
    data = layout.make(of, kind="dense", num_devices=1)
    expected = truth - truth.mean()
    made, group = declared(np.where(np.arange(USERS) % 2, 0.4, 4.0), **MEANS)
    phases = als.phases(made, None, group)
    alone = als.phases(dataclasses.replace(made, budgets=()))
    usual, found = (slope(made, one, of, data, expected) for one in (alone, phases))
    assert found == pytest.approx(usual, rel=0.02)
    # as if everybody had the largest budget
    args = phases[1][0].update.args[0]
    groups = args.groups._replace(total=jnp.float32(USERS))
    (counts, (means, num)) = phases
    forgot = Partial(means.update.func, dataclasses.replace(args, groups=groups))
    wrong = slope(made, (counts, (means._replace(update=forgot), num)), of, data, expected)
    assert abs(wrong / usual - 1) > 0.2


def test_groups_that_are_not_the_users_are_refused():
    made, group = declared(**MEANS)
    data = layout.make(ratings(), kind="dense", num_devices=1)
    for wrong in (None, group[:-1], 1 - group, group + 1, group / 2, group[None]):
        with pytest.raises(ValueError, match="group"):
            als.phases(made, None, wrong)
    more, of_more = declared(np.append(EPSILONS, 8.0), **MEANS)
    with pytest.raises(UsageError, match="14 users"):
        als.phases(more, None, of_more)[0][0].init(keys.from_seed(0), data, None)
    with pytest.raises(ValueError, match="largest"):
        config(noise_multiplier=1.0, budgets=made.budgets)
    with pytest.raises(ValueError, match="epsilon"):
        declared(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="a curator's noise"):  # a share is the same for everybody
        dataclasses.replace(made, honest_shares=3, num_users=USERS)
    with pytest.raises(PrivacyError, match="too large"):
        als.phases(*_with_group(np.array([1e-4, 4.0])))


def _with_group(epsilons):
    made, group = declared(epsilons)
    return made, None, group
