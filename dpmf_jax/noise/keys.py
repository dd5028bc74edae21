"""Where randomness comes from: a seed (an experiment) or the operating system (a release)."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.devices import hosts
from dpmf_jax.errors import UsageError
from dpmf_jax.noise import chacha


def from_seed(seed: int) -> jax.Array:
    """The key of an experiment, from all 64 bits of a seed, for threefry.

    `jax.random.key` would drop the upper 32 without x64.

    Raises: UsageError for a seed outside 0 ≤ seed < 2⁶⁴.
    """
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise UsageError(
            f"seed {seed!r} is not an integer from 0 to 2^64 - 1", fix="choose a seed in this range"
        )
    seed = int(seed)
    return jax.random.wrap_key_data(
        jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32), impl="threefry2x32"
    )


def from_operating_system() -> jax.Array:
    """The key of a release: 256 bits from the operating system, for ChaCha20.

    Store it nowhere. Several processes share the first one's.
    """
    bits = np.frombuffer(hosts.gather(os.urandom(32))[0], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=chacha.IMPL)
