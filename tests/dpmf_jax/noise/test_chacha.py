"""ChaCha20 against RFC 8439, and as a generator of jax: no two uses share a block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax.devices import spread
from dpmf_jax.noise import chacha

COUNTING = np.frombuffer(bytes(range(32)), "<u4")
# RFC 8439, section 2.3.2 and appendix A.1, test vectors 1 to 5: key, nonce, counter, words.
VECTORS = [
    (
        COUNTING,
        (0x09000000, 0x4A000000, 0),
        1,
        "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3"
        " 466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2",
    ),
    (
        np.zeros(8, np.uint32),
        (0, 0, 0),
        0,
        "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b"
        " 7c5941da 8d485751 3fe02477 374ad8b8 f4b8436a 1ca11815 69b687c3 8665eeb2",
    ),
    (
        np.zeros(8, np.uint32),
        (0, 0, 0),
        1,
        "bee7079f 7a385155 7c97ba98 0d082d73 a0290fcb 6965e348 3e53c612 ed7aee32"
        " 7621b729 434ee69c b03371d5 d539d874 281fed31 45fb0a51 1f0ae1ac 6f4d794b",
    ),
]


def key(words=COUNTING):
    return jax.random.wrap_key_data(jnp.asarray(words), impl=chacha.IMPL)


@pytest.mark.parametrize(("words", "nonce", "counter", "expected"), VECTORS)
def test_the_block_function_is_that_of_the_rfc(words, nonce, counter, expected):
    found = chacha.blocks(jnp.asarray(words), jnp.array([7, counter], jnp.uint32), nonce)[:, 1]
    assert [f"{int(word):08x}" for word in found] == expected.split()


@pytest.mark.seconds
def test_a_stream_has_the_same_words_on_an_accelerator(monkeypatch):
    """It makes many groups of blocks at a time, a CPU one."""
    count = 16 * (2 * chacha.CHUNK + 5)
    pairs = jnp.arange(chacha.CHUNK + 5, dtype=jnp.uint32)

    def drawn_words():
        return (
            chacha.stream(jnp.asarray(COUNTING), count, (0, 32, chacha.BITS)),
            chacha.pair_words(jnp.asarray(COUNTING), pairs, pairs),
            chacha.row_words(jnp.asarray(COUNTING), pairs[:300], 300),
        )

    found = drawn_words()
    monkeypatch.setattr(spread, "backend", lambda: "gpu")
    for ours, theirs in zip(found, drawn_words(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.seconds
@pytest.mark.parametrize("number", [3, chacha.CHUNK, chacha.CHUNK + 1])
def test_a_stream_has_every_word_of_its_blocks_once(number):
    found = chacha.stream(jnp.asarray(COUNTING), 16 * number, (0, 32, chacha.BITS))
    counters = jnp.arange(number, dtype=jnp.uint32)
    expected = chacha.blocks(jnp.asarray(COUNTING), counters, (0, 32, chacha.BITS))
    if number <= chacha.CHUNK:
        np.testing.assert_array_equal(np.sort(found), np.sort(np.ravel(expected)))
    else:  # the last group is filled up with blocks of its own
        first = 16 * chacha.CHUNK
        np.testing.assert_array_equal(found[:first], np.ravel(expected[:, : chacha.CHUNK]))
        assert len(np.unique(found)) > len(found) - 20


def test_a_fold_a_split_and_the_bits_of_a_key_have_blocks_of_their_own():
    first = [
        jax.random.key_data(jax.random.fold_in(key(), 0)),
        jax.random.key_data(jax.random.split(key()))[0],
        jax.random.bits(key(), (8,)),
    ]
    assert len(np.unique(np.stack(first))) == 24


@pytest.mark.seconds
def test_no_use_of_a_key_shares_a_word_with_another():
    """Children, grandchildren, folds and bits: 64-bit halves that are equal would be no chance."""
    data = jax.random.key_data
    children = jax.random.split(key(), 5)
    parts = [
        data(key())[None],
        data(children),
        data(jax.random.split(children[0], 5)),
        *(data(jax.random.fold_in(key(), number))[None] for number in range(5)),
        data(jax.random.key(0, impl=chacha.IMPL))[None],
        *(jax.random.bits(key(), (5, 8), f"uint{width}") for width in (8, 16, 32)),
    ]
    words = np.concatenate([np.asarray(part) for part in parts[:-3]] + [np.asarray(parts[-1])])
    pairs = words.reshape(-1, 2).astype(np.uint64)
    assert len(np.unique(pairs[:, 0] << np.uint64(32) | pairs[:, 1])) == len(pairs)


@pytest.mark.seconds
def test_a_child_is_the_same_however_it_is_made():
    """So a run in chunks, or over keys side by side, draws what the whole draws."""
    data = jax.random.key_data
    np.testing.assert_array_equal(
        data(jax.random.split(key(), 3)), data(jax.random.split(key(), 7))[:3]
    )
    np.testing.assert_array_equal(
        data(jax.random.split(key(), (2, 2))).reshape(4, 8), data(jax.random.split(key(), 4))
    )
    keys = jax.random.split(key(), 4)
    together = jax.jit(jax.vmap(lambda one: jax.random.bits(one, (5,))))(keys)
    for one, row in zip(keys, together, strict=True):
        np.testing.assert_array_equal(jax.random.bits(one, (5,)), row)


@pytest.mark.parametrize("width", [8, 16, 32])
def test_bits_are_uniform(width):
    words = np.asarray(jax.random.bits(key(), (1 << 16,), f"uint{width}")).astype(np.uint32)
    for shift in range(0, width, 8):
        counts = np.bincount(words >> shift & 0xFF, minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-5  # one in 10^5, and the key is fixed


def test_bits_of_64_are_two_words():
    with jax.enable_x64(True):
        found = np.asarray(jax.random.bits(key(), (1 << 12,), "uint64"))
    assert found.dtype == np.uint64
    for half in (found >> np.uint64(32), found & np.uint64(0xFFFFFFFF)):
        assert len(np.unique(half)) > 4090
