"""als before an untrusted recommender: the same messages, shares of noise, what they cost, and that
nothing but opened sums reaches the public state.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import accounting
from accounting import gaussian, words
from dpmf_jax import layout, protocol
from dpmf_jax.errors import PrivacyError
from dpmf_jax.mechanisms import table
from dpmf_jax.mechanisms.als import config as settings
from dpmf_jax.mechanisms.als import phases as als
from dpmf_jax.mechanisms.als import state as states_of
from dpmf_jax.mechanisms.als import trust
from dpmf_jax.mechanisms.federated import roles
from dpmf_jax.mechanisms.federated.messages import Ask, Upload
from dpmf_jax.noise import keys, normal_shares, whole
from experiments.fit import mechanisms as fit_mechanisms
from tests.cases.ratings import share

pytestmark = pytest.mark.usefixtures("quick_compilation")

USERS, ITEMS = 12, 9
RATINGS = share(0.6, (USERS, ITEMS))
DATA = layout.make(RATINGS, kind="dense", num_devices=1)
Z = gaussian.solve_noise_multiplier(4.0, 1e-5, 1)


def config(**change):
    usual = {"rating_range": (1.0, 5.0), "noise_multiplier": Z, "rank": 2, "num_passes": 2}
    return settings.Config(**(usual | change))


def shared(honest_shares, num_users=USERS, **change):
    return config(honest_shares=honest_shares, num_users=num_users, **change)


def whole_guarantee(made):
    return accounting.compose(*(mechanism.guarantee(num) for mechanism, num in made))


def params(mechanism):
    return mechanism.query.args[0]


# --- noise and its price


@pytest.mark.parametrize("num_users", [2, 943, 6_040, 95_029, 480_189, 10**6, 10**7, 10**9])
@pytest.mark.parametrize("part", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("ratio", [0.05, 0.4, 2.0])
def test_the_grid_holds_shares_that_add_up_and_sums_of_everybody(num_users, part, ratio):
    honest = max(1, round(part * (num_users - 1)))
    found = settings.scales(shared(honest, num_users), ratio)
    assert found.share is not None
    assert float(np.float32(found.share)) == found.share >= settings.LEAST_SHARE
    assert float(np.float32(found.drawn)) == found.drawn <= whole.LARGEST
    # what is drawn is the noise of all shares, and what is priced that of the honest ones
    assert found.drawn**2 >= num_users * found.share**2 > honest * found.share**2
    assert found.drawn <= 1.02 * found.share * math.sqrt(num_users)
    assert found.priced**2 <= honest * found.share**2
    assert found.priced == pytest.approx(found.share * math.sqrt(honest), rel=1e-12)
    assert found.distance == 2.0**36 * normal_shares.distance(found.share, honest)
    assert (1 + math.exp(20)) * 20 * found.distance < 2.0**-40 * 1e-5  # of δ: nothing
    everybody = num_users * ratio * found.priced + 16 * found.drawn
    if everybody > 2**31:  # only where shares are as small as may be
        assert found.share == settings.LEAST_SHARE
        assert num_users >= 500_000 / ratio
    # and no coarser than needs be
    assert everybody > 2**30 or found.drawn > 0.99 * whole.LARGEST


def test_a_curator_has_the_grid_that_tables_hold():
    largest = float(np.float32(whole.LARGEST))
    assert settings.scales(config(), 0.4)[:3] == (largest, largest, None)


def test_the_price_is_that_of_als_and_needs_the_honest_shares_alone():
    """With all others honest, with half of them, and with one: at the same ε."""
    of_als = whole_guarantee(als.phases(config()))
    for honest in (942, 471, 1):
        found = whole_guarantee(als.phases(shared(honest, 943)))
        assert 3.98 < found.accountants["exact"] <= found.epsilon <= 4.0 == of_als.epsilon
        assert (found.unit, found.status) == ("user", "proved")
        assert found.relation == of_als.relation
        for one, other in zip(found.losses, of_als.losses, strict=True):
            assert one.noise_multiplier == pytest.approx(other.noise_multiplier, rel=0.01)
            assert one.num_steps == other.num_steps
            assert one.distance >= honest * other.distance  # so many draws in place of one


@pytest.mark.parametrize("relation", ["user added or removed", "user replaced"])
def test_fewer_honest_shares_let_more_noise_into_the_same_messages(relation):
    """The noise in a response, per unit of the clip, is √(n/k) times what is priced."""
    for num_users, honest in ((943, 942), (943, 471), (943, 94)):
        for mechanism, num in als.phases(shared(honest, num_users, relation=relation)):
            made = params(mechanism)
            expected = math.sqrt(num_users / honest)
            for step, loss in enumerate(mechanism.guarantee(num).losses):
                times = 2 if relation == "user replaced" else 1
                moved = times * float(made.whole_clip[step])
                assert loss.noise_multiplier * moved == pytest.approx(made.priced_scale)
                drawn = float(made.noise_scale) / moved
                assert drawn / loss.noise_multiplier == pytest.approx(expected, rel=1e-4)
            surplus = mechanism.guarantee(num).surplus_noise
            assert surplus == pytest.approx(expected, rel=1e-4)


def test_what_is_drawn_is_the_noise_of_all_shares_and_estimates_know():
    """Of 12 users, five honest: against shares that are drawn one by one."""
    (counts, _), (means, _), *_ = als.phases(shared(5))
    made, share_scale = params(counts), settings.scales(shared(5), config().clips()[0]).share
    law, count = normal_shares.law(share_scale), 20_000
    each = jax.jit(lambda key: normal_shares.draw(key, law, (count,)))
    total = sum(np.asarray(each(key)) for key in jax.random.split(jax.random.key(0), USERS))
    at_once = counts.noise.sample(jax.random.key(1), jnp.zeros(count, jnp.uint32))
    for drawn in (total, np.asarray(at_once)):  # 20,000 numbers: right within 3%, 6 deviations
        assert drawn.view(np.int32).std() == pytest.approx(float(made.noise_scale), rel=0.03)
    assert float(made.noise_scale) > 1.5 * made.priced_scale
    clip = float(made.whole_clip[0])
    for one in (made, params(means)):
        assert float(one.count_deviation) == pytest.approx(float(made.noise_scale) / clip)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"honest_shares": 12}, PrivacyError, "12 honest shares"),
        ({"honest_shares": 1, "num_users": 1}, PrivacyError, "0 of 1 users"),
        ({"honest_shares": 0}, ValueError, "honest_shares"),
        ({"num_users": None}, ValueError, "honest_shares need num_users"),
        ({"honest_shares": None, "num_users": 0}, ValueError, "num_users"),
        ({"num_users": 10**10}, PrivacyError, "of 10000000000 users is too small"),
        ({"noise_multiplier": 1e4}, PrivacyError, "fewer than 64"),
        ({"honest_shares": 1, "num_users": 10**9}, PrivacyError, "more honest shares"),
    ],
)
def test_settings_that_no_price_is_known_for_are_refused(change, error, said):
    with pytest.raises(error) as refused:
        als.phases(config(**({"honest_shares": 5, "num_users": USERS} | change)))
    told = (refused.value, *(getattr(refused.value, name, "") for name in ("where", "fix")))
    assert said in " ".join(map(str, told))
    if error is PrivacyError:
        assert refused.value.where
        assert refused.value.fix


# --- messages and the secure sum


def public_states(phases):
    """(mechanism, the public state that its first step starts from) of each phase."""
    key, state = keys.from_seed(0), None
    for mechanism, num_steps in phases:
        key, init_key, train_key = jax.random.split(key, 3)
        start = jax.jit(mechanism.init)(init_key, DATA, None if state is None else state.public)
        yield mechanism, start.public
        state, _ = protocol.train(mechanism, train_key, start, DATA, num_steps)


@pytest.fixture(scope="module")
def states(quick_compilation):
    return list(public_states(als.phases(shared(5))))


@jax.jit
def ask(mechanism, public, data):
    private = states_of.solve(params(mechanism), public.items, data)
    return mechanism.query(protocol.State(public, private, jnp.int32(0)), data, None)[0]


def of_user(user):
    """That user's ratings alone, in the same shapes."""
    return layout.make(
        dataclasses.replace(
            RATINGS,
            user=RATINGS.user[(mine := RATINGS.user == user)],
            item=RATINGS.item[mine],
            value=RATINGS.value[mine],
        ),
        kind="dense",
        num_devices=1,
    )


OF_NOISE = {"noise_scale", "priced_scale", "distance", "count_deviation", "honest_shares", "name"}
CLIPS = ("clip", "whole_clip")  # in units, of which there are others


def test_messages_are_those_of_als(states):
    """By the same program, of the same numbers but for the clip; at the clip of als the same."""
    usual, found = als.phases(config()), als.phases(shared(5))
    for (curated, num), (mechanism, steps) in zip(usual, found, strict=True):
        assert num == steps
        assert curated.query.func is mechanism.query.func
        assert curated.update.func is mechanism.update.func
        for field in {field.name for field in dataclasses.fields(params(curated))} - OF_NOISE:
            if field not in CLIPS:
                one, two = (
                    jax.tree.leaves(getattr(params(of), field)) for of in (curated, mechanism)
                )
                assert all(np.array_equal(*both) for both in zip(one, two, strict=True)), field
    (curated, _), (mechanism, public) = usual[2], states[2]
    clips = {name: getattr(params(curated), name) for name in CLIPS}
    same = dataclasses.replace(params(mechanism), **clips)
    other = mechanism._replace(query=Partial(mechanism.query.func, same))
    one, two = (jax.tree.leaves(ask(of, public, DATA)) for of in (curated, other))
    for mine, theirs in zip(one, two, strict=True):
        assert np.any(mine)
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.seconds
def test_masked_messages_with_shares_open_to_the_curators_sums_and_the_shares(states):
    """Every role is played, by the secure sum that the other federated ones have."""
    made = shared(5)
    for mechanism, public in states[:3]:  # the last phase is as the second
        curated = jax.tree.leaves(ask(mechanism, public, DATA))
        opened = sum(leaf.size for leaf in curated)
        law = normal_shares.law(settings.scales(made, max(ratios(made, mechanism))).share)
        messages, noise = [], []
        for user, key in enumerate(jax.random.split(jax.random.key(3), USERS)):
            own = jax.tree.leaves(ask(mechanism, public, of_user(user)))
            messages.append(np.concatenate([np.ravel(leaf) for leaf in own]))
            noise.append(np.asarray(normal_shares.draw(key, law, (opened,))))
        asks = Ask(jnp.broadcast_to(jnp.arange(opened), (USERS, opened)))
        everybody = jnp.ones(USERS, bool)
        requests = roles.request(jax.random.key(4), asks, everybody, opened, 1)
        masked = requests.pads + np.stack(messages)[..., None] + np.stack(noise)[..., None]
        total = roles.add_up(
            Upload(asks.items, masked), everybody, jnp.zeros((opened, 1), jnp.uint32), 6
        )
        found = roles.open_sum(total, asks, everybody, requests)
        expected = np.concatenate([np.ravel(leaf) for leaf in curated]) + sum(noise)
        np.testing.assert_array_equal(np.ravel(found.sums), expected)
        assert np.all(found.opened)
        assert not np.array_equal(np.ravel(total.sums), expected)  # masked before it is opened
        # a total of too few is not opened
        few = jnp.arange(USERS) < 5
        none = roles.add_up(Upload(asks.items, masked), few, jnp.zeros((opened, 1), jnp.uint32), 6)
        assert not np.any(none.sums)
        assert not np.any(none.opened)


def ratios(made, mechanism):
    counts, of_means, of_factors = made.clips()
    return {"counts": (counts,), "means": of_means, "factors": of_factors}[
        params(mechanism).name.removeprefix("als-federated-")
    ]


def looks_at_the_ratings(update, params, state, response, data):
    found = update(params, state, response, data)
    count = found.public.count + jnp.sum(found.private.count)
    return found._replace(public=found.public._replace(count=count))


@pytest.mark.parametrize("planted", [pytest.param(False, marks=pytest.mark.seconds), True])
def test_nothing_but_opened_sums_reaches_the_public_state(planted):
    """Of two data sets, one without a user: the same sums give the same public state, and a phase
    starts from what was public.
    """
    other = layout.make(
        dataclasses.replace(
            RATINGS,
            user=RATINGS.user[(kept := RATINGS.user != 3)],
            item=RATINGS.item[kept],
            value=RATINGS.value[kept],
        ),
        kind="dense",
        num_devices=1,
    )
    same, before = [], (None, None)
    for mechanism, num_steps in als.phases(shared(5))[: 1 if planted else None]:
        if planted:
            made = mechanism.update
            mechanism = mechanism._replace(
                update=Partial(looks_at_the_ratings, Partial(made.func), *made.args)
            )

        @jax.jit
        def follow(mechanism, key, data, before, start, num_steps=num_steps):
            """Responses are those of the full data set, whichever data answer to them. No compiler
            knows the number of a step: it never does where models are trained (`steady`).
            """
            first = mechanism.init(key, DATA, before[0])._replace(step=start)
            mine = mechanism.init(key, data, before[1])._replace(step=start)
            for number in range(num_steps):
                statistics, _ = mechanism.query(first, DATA, None)
                response = mechanism.noise.sample(jax.random.fold_in(key, number), statistics)
                first, mine = (
                    mechanism.update(state, response, of)._replace(step=state.step + 1)
                    for state, of in ((first, DATA), (mine, data))
                )
            return first.public, mine.public

        before = follow(mechanism, keys.from_seed(1), other, before, jnp.int32(0))
        same += [
            np.array_equal(one, two) for one, two in zip(*map(jax.tree.leaves, before), strict=True)
        ]
    assert all(same) != planted


# --- what is said


def test_the_statement_says_who_sees_what_and_what_it_needs():
    made = als.phases(shared(7))
    guarantee = whole_guarantee(made)
    assert guarantee.rounds_are_seen
    assert "the noisy sums of every pass" in guarantee.released
    said = " ".join(str(guarantee).split())
    for sentence in (
        "untrusted recommender, which sees the noisy sums of every pass",
        "nobody holds a sum without noise",
        "at least 7 users other than the protected one add a share of noise",
        "as long as at least 7 others who take part do not",
        "a user without ratings takes part as everybody does",
        "recommender + third party",
        "what a user is shown",
        "als-federated-counts",
        "σ is what is relied on: a response has at least 1.3093 times as much",  # √(12/7)
    ):
        assert sentence in said
    assert "trusted curator" not in said
    curated = whole_guarantee(als.phases(config()))
    assert not curated.rounds_are_seen
    assert "recommender" not in str(curated)
    assert "trusted curator" in str(curated)
    for honest in (None, 7):
        told = [
            trust.trust(honest, features=known, budgets=False).assumptions
            for known in (False, True)
        ]
        assert set(told[1]) - set(told[0]) == {words.FEATURES}
        assert set(told[0]) > {words.DECLARED, words.CATALOGUE, words.ROUNDED_NORMALS}


def spec_settings(**flags):
    return fit_mechanisms.phases_and_settings(
        "als-federated", fit_mechanisms.flags("als-federated", **flags), RATINGS
    )


def test_settings_are_public_sizes_and_the_signal_counts_the_noise_of_all_shares():
    _, found = spec_settings()
    assert (found["honest_shares"], found["num_users"]) == (USERS - 1, USERS)
    spec = table()["als-federated"]

    def rank(num_users, honest):
        ratings = dataclasses.replace(RATINGS, users=np.arange(num_users))
        flags = spec.flags(honest_shares=honest)
        return spec.settings("als-federated", flags, ratings, None)["rank"]

    assert (
        rank(150, None)
        == table()["als"].settings(
            "als", table()["als"].flags(), dataclasses.replace(RATINGS, users=np.arange(150)), None
        )["rank"]
    )
    least = next(num for num in range(10, 1_000) if rank(num, None))
    assert rank(least, least // 2) == 0
    assert rank(2 * least, least) > 0


def test_bytes_are_those_of_every_sum_that_a_pass_opens():
    spec = table()["als-federated"]
    made, found = spec_settings(rank=2, steps=3)
    told = spec.traffic(found, USERS, ITEMS)
    passes = told["per_pass"]
    sizes, key = {}, keys.from_seed(0)
    for mechanism, _ in made:

        def opened(mechanism=mechanism):
            return mechanism.query(mechanism.init(key, DATA, None), DATA, None)[0]

        kind = params(mechanism).name.removeprefix("als-federated-")
        sizes[kind] = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(opened)))
    assert set(passes) == set(sizes) == {"counts", "means", "factors"}
    for kind, opened in sizes.items():
        assert passes[kind]["user to third party"] == 4 * opened
        public = 0 if kind == "counts" else 4 * (ITEMS * (1 + 2 * 2 + 2) + 1)  # and slopes' columns
        assert passes[kind]["recommender to user"] == 4 * opened + public
        assert passes[kind]["third party to recommender"] == 4 * opened + 1 + USERS
    assert [passes[kind]["passes"] for kind in ("counts", "means", "factors")] == [1, 2, 3]
    assert told["iterations"] == sum(num for _, num in made) == 6
    assert told["per_iteration"]["user to third party"] == 4 * sizes["factors"]
    assert told["items_listed_by_a_user"] == ITEMS
    alone = spec.traffic(spec_settings(rank=0)[1], USERS, ITEMS)
    assert alone["iterations"] == 5
    assert set(alone["per_pass"]) == {"counts", "means"}
    assert table()["als"].traffic({}, USERS, ITEMS) is None
