"""Messages of paper 003: pads and pieces hide what they should, the noise is what is priced, bytes
are counted.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax.mechanisms.federated import messages, roles
from dpmf_jax.mechanisms.federated.messages import Ask, Own, Request, Upload
from dpmf_jax.noise import ring
from tests.cases import messages as cases
from tests.cases.messages import (
    FALSE_ALARM,
    ITEMS,
    NOBODY_HIDES,
    RANK,
    RULES,
    STEP,
    USERS,
    WIDTH,
    bitwise,
    cut,
    every,
    iterate,
    run,
    split,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


# -------------------------------------------------------------------------------------------- what


def two_worlds(listed):
    own, other = cases.owns(listed), cases.owns(listed, seed=1)
    return own, other._replace(rated=own.rated)


def test_another_pad_makes_the_upload_of_any_other_ratings():
    """φ(D, ψ) = φ(D', ψ + c), where c does not depend on ψ: so both worlds' φ have one law, if ψ is
    uniform.
    """
    listed = cases.asks()
    worlds = [jax.tree.map(lambda leaf: leaf[0], world) for world in two_worlds(listed)]
    ask = Ask(listed.items[0])
    rows = cases.item_factors().at[ask.items].get(mode="fill", fill_value=0)
    key = jax.random.key(8)

    def sent(world, pads):
        return roles.upload(key, world, ask, Request(pads, rows), RULES)

    nothing = jnp.zeros((WIDTH, RANK), jnp.uint32)
    moved = sent(worlds[0], nothing).masked - sent(worlds[1], nothing).masked
    assert np.any(moved)
    for seed in range(5):
        pads = cases.elements(seed, WIDTH, RANK)
        assert bitwise(sent(worlds[0], pads), sent(worlds[1], pads + moved))


def test_over_all_pads_of_a_small_ring_every_upload_occurs_once_in_both_worlds():
    """Addition mod 2^32 is addition mod 2^8 in the lowest byte: all 256 pads of a coordinate are
    gone through.
    """
    listed = cases.asks()
    ask = Ask(listed.items[0])
    rows = cases.item_factors().at[ask.items].get(mode="fill", fill_value=0)
    pads = jnp.broadcast_to(jnp.arange(256, dtype=jnp.uint32)[:, None, None], (256, WIDTH, RANK))
    counts = []
    for world in two_worlds(listed):
        one = jax.tree.map(lambda leaf: leaf[0], world)
        send = jax.jit(
            jax.vmap(
                lambda pad, one=one: roles.upload(
                    jax.random.key(8), one, ask, Request(pad, rows), RULES
                )
            )
        )
        seen = np.asarray(send(pads).masked) % 256
        counts.append(
            np.array([np.bincount(column, minlength=256) for column in seen.reshape(256, -1).T])
        )
    assert np.all(counts[0] == 1)
    np.testing.assert_array_equal(counts[0], counts[1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_pads_are_uniform_and_so_is_all_that_the_third_party_sees(dynamic):
    """Bytes of pads and of uploads against the uniform law; the sum of two users' uploads too."""
    listed = cases.whole_catalogue(200)
    own = jax.tree.map(
        lambda leaf: jnp.tile(leaf[:1], (200, *(1,) * (leaf.ndim - 1))),
        cases.owns(cases.whole_catalogue()),
    )
    here = jnp.ones(200, bool)
    tau_hat = cases.elements(1, ITEMS, RANK) if dynamic else None
    _opened, sent = iterate(
        jax.random.key(4),
        RULES,
        own,
        listed,
        cases.item_factors(),
        NOBODY_HIDES,
        here,
        here,
        1,
        tau_hat=tau_hat,
    )
    masked = np.asarray(sent.uploads.masked)
    for words in (
        np.asarray(sent.requests.pads),
        masked,
        masked[::2] + masked[1::2],
        masked[::2] - masked[1::2],
    ):
        of_bytes = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
        assert scipy.stats.chisquare(of_bytes).pvalue > FALSE_ALARM
    assert len(np.unique(masked)) == masked.size


@pytest.mark.seconds
def test_listing_the_whole_catalogue_hides_who_rated_what():
    """In `per_user` the fields that are not masked are the same for any ratings of any items."""
    listed = cases.whole_catalogue()
    own = cases.owns(listed)
    rated = jnp.asarray(np.random.default_rng(0).random((2, USERS, ITEMS)) < 0.5)
    rules = roles.per_user(clip_norm=2.0, scale_in_steps=20.0, num_shares=3, step=STEP)
    results = [run(own._replace(rated=which), listed, rules=rules) for which in rated]
    for opened, sent in results:
        assert np.all(opened.counts == USERS)
        np.testing.assert_array_equal(sent.uploads.items, listed.items)
    assert bitwise(results[0][1].requests, results[1][1].requests)
    assert np.any(results[0][1].uploads.masked != results[1][1].uploads.masked)


# --------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**20), num_pieces=st.sampled_from([1, 2, 9]))
def test_pieces_sum_to_the_whole(seed, num_pieces):
    tau_hat = cases.elements(seed, ITEMS, RANK)
    pieces = split(jax.random.key(seed), tau_hat, num_pieces)
    assert pieces.shape == (num_pieces, ITEMS, RANK)
    np.testing.assert_array_equal(jnp.sum(pieces, axis=0, dtype=jnp.uint32), tau_hat)


@given(seed=st.integers(0, 2**20), asked=st.lists(st.booleans(), min_size=USERS, max_size=USERS))
def test_pieces_go_to_those_who_asked_for_the_item(seed, asked):
    listed, asked, tau_hat = cases.asks(seed), np.array(asked), cases.elements(seed, ITEMS, RANK)
    pieces = np.asarray(cut(jax.random.key(seed), tau_hat, listed, jnp.asarray(asked)))
    sums = np.zeros((ITEMS + 1, RANK), np.uint32)
    np.add.at(sums, np.asarray(listed.items), pieces)
    some = cases.contributors(listed, asked) > 0
    np.testing.assert_array_equal(sums[:ITEMS][some], np.asarray(tau_hat)[some])
    assert not np.any(pieces[~asked])
    assert not np.any(pieces[np.asarray(listed.items) == ITEMS])


def test_all_pieces_but_one_say_nothing_about_the_whole():
    """Two wholes, one key: only the last piece differs, and by the difference; the others are
    uniform.
    """
    whole, other = cases.elements(0, ITEMS, RANK), cases.elements(1, ITEMS, RANK)
    pieces, changed = (split(jax.random.key(2), tau_hat, 600) for tau_hat in (whole, other))
    np.testing.assert_array_equal(pieces[:-1], changed[:-1])
    np.testing.assert_array_equal(pieces[-1] - changed[-1], whole - other)
    of_bytes = np.bincount(
        np.frombuffer(np.asarray(pieces[:-1]).tobytes(), np.uint8), minlength=256
    )
    assert scipy.stats.chisquare(of_bytes).pvalue > FALSE_ALARM
    # nor does the last, without the others: over keys it is uniform
    last = jax.jit(jax.vmap(lambda key: roles.split(key, whole, 2)[1]))
    last = np.asarray(last(jax.random.split(jax.random.key(3), 600)))
    of_bytes = np.bincount(np.frombuffer(last.tobytes(), np.uint8), minlength=256)
    assert scipy.stats.chisquare(of_bytes).pvalue > FALSE_ALARM


# --------------------------------------------------------------------------------------------------


@pytest.mark.seconds
@pytest.mark.parametrize("scale", [3.0, 15.0])
def test_the_noise_of_an_opened_sum_is_the_discrete_laplace_of_the_rules(scale):
    """No ratings at all, k' = 3 of 3 users: the seam between what is priced and what is added."""
    rules = roles.per_user(clip_norm=1.0, scale_in_steps=scale, num_shares=3, step=STEP)
    own, listed, here = (
        Own(jnp.ones((3, 4)), jnp.zeros((3, 500)), jnp.zeros((3, 500), bool)),
        500,
        jnp.ones(3, bool),
    )
    asks = Ask(jnp.broadcast_to(jnp.arange(listed), (3, listed)))
    opened, _sent = iterate(
        jax.random.key(1),
        rules,
        own,
        asks,
        jnp.ones((listed, 4)),
        jnp.zeros((listed, 4), jnp.uint32),
        here,
        here,
        3,
    )
    drawn = np.abs(np.asarray(ring.signed(opened.sums)).astype(np.int64)).ravel()
    reach = int(4 * scale)
    found = np.bincount(np.minimum(drawn, reach), minlength=reach + 1)

    def p_value(b):
        law = np.append(
            math.tanh(1 / (2 * b)), 2 * math.tanh(1 / (2 * b)) * np.exp(-np.arange(1, reach) / b)
        )
        return scipy.stats.chisquare(found, drawn.size * np.append(law, 1 - law.sum())).pvalue

    assert p_value(scale) > FALSE_ALARM
    assert p_value(scale * 2 / 3) < FALSE_ALARM
    assert p_value(scale * 3 / 2) < FALSE_ALARM


def test_the_published_noise_of_an_opened_sum_is_laplace_over_h():
    """1,000 items, nothing rated, 3 users with shares (12), H fresh for every item and
    coordinate.
    """
    rules = roles.published(scale=2.5, step=2.0**-14)
    num, here = 1000, jnp.ones(3, bool)
    own = Own(jnp.ones((3, 2)), jnp.zeros((3, num)), jnp.zeros((3, num), bool))
    asks = Ask(jnp.broadcast_to(jnp.arange(num), (3, num)))
    factor = roles.draw_factor(jax.random.key(5), num, 2)
    hidden = jnp.zeros((num, 2), jnp.uint32)
    opened, sent = iterate(
        jax.random.key(1),
        rules,
        own,
        asks,
        jnp.ones((num, 2)),
        hidden,
        here,
        here,
        3,
        factor=factor,
    )
    drawn = np.ravel(ring.decode(opened.sums, 2.0**-14))
    assert np.all(sent.requests.num_shares == 3)
    for wrong, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        law = scipy.stats.laplace(scale=2.5 * wrong).cdf
        assert (scipy.stats.kstest(drawn, law).pvalue > FALSE_ALARM) == fits
    given_h = scipy.stats.kstest(drawn / np.ravel(2.5 * np.sqrt(2 * factor)), scipy.stats.norm.cdf)
    assert given_h.pvalue > FALSE_ALARM


@pytest.mark.parametrize(("scale", "num_shares"), [(0.0, 3), (-1.0, 3), (math.nan, 3), (5.0, 0)])
def test_noise_that_is_none_is_refused(scale, num_shares):
    with pytest.raises(ValueError, match="must be"):
        roles.per_user(clip_norm=1.0, scale_in_steps=scale, num_shares=num_shares, step=STEP)


def test_published_rules_without_h_are_refused():
    listed = cases.asks()
    with pytest.raises(ValueError, match="H"):
        roles.iteration(
            jax.random.key(0),
            roles.published(scale=1.0, step=STEP),
            cases.owns(listed),
            listed,
            cases.item_factors(),
            NOBODY_HIDES,
            every,
            every,
            1,
        )


# --------------------------------------------------------------------------------------------------


def paper_s_user(*, factor: bool):
    """One user with 20 items at d = 50, S3: the real arrays of an iteration."""
    rank, num = 50, 20
    own = Own(jnp.ones((1, rank)), jnp.ones((1, num)), jnp.ones((1, num), bool))
    asks, here = Ask(jnp.arange(num, dtype=jnp.int32)[None]), jnp.ones(1, bool)
    hidden = jnp.zeros((num, rank), jnp.uint32)
    _opened, sent = iterate(
        jax.random.key(0),
        roles.published(scale=1.0, step=STEP) if factor else RULES,
        own,
        asks,
        jnp.ones((num, rank)),
        hidden,
        here,
        here,
        1,
        tau_hat=hidden,
        factor=jnp.ones((num, rank)) if factor else None,
    )
    return messages.traffic(sent)


def test_the_paper_s_bytes_of_a_user_are_counted():
    """20 items, d = 50, four bytes a number: V, pads and pieces down, φ up. The paper: 12 KB and 5
    KB at most.
    """
    sent = paper_s_user(factor=False)
    assert sent["recommender", "user"] == 3 * 20 * 50 * 4 == 12_000
    assert sent["user", "third party"] == 20 * 50 * 4 + 20 * 4 == 4_080 <= 5_000
    assert sent["user", "recommender"] == 80
    # the shares (12) need H and k, in every iteration another H: more than the paper counts
    with_h = paper_s_user(factor=True)
    assert with_h["recommender", "user"] == 12_000 + 4_000 + 80
    assert with_h["user", "third party"] == 4_080


def test_the_third_party_sends_less_than_3_mb_for_10_000_items():
    rank, num, users = 50, 10_000, 1_000
    uploads = Upload(jnp.zeros((users, 1), jnp.int32), jnp.zeros((users, 1, rank), jnp.uint32))
    total = roles.add_up(uploads, jnp.ones(users, bool), jnp.zeros((num, rank), jnp.uint32), 1)
    assert messages.num_bytes(total) == num * rank * 4 + num + users == 2_011_000 < 3_000_000


def test_every_message_has_a_sender_and_a_receiver():
    assert set(messages.ROUTES) == set(messages.Messages._fields)
    assert not {route for route in messages.ROUTES.values() if set(route) == {"user"}}
    counted = jax.eval_shape(lambda: paper_like())
    assert messages.traffic(counted) == messages.traffic(paper_like())


def paper_like():
    listed = cases.asks()
    return run(cases.owns(listed), listed)[1]
