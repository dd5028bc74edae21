"""Privacy losses of many runs: the responses of one world drive both, and the losses add up."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accounting.guarantee import Unit
from audits import neighbours, side_by_side
from audits.mechanism import sampled_loss
from audits.mechanism.loss_bound import Losses
from dpmf_jax import layout, protocol
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, State

CHUNK = 16  # runs of one call


class Tilt(NamedTuple):
    """The law that responses are drawn from.

    A shift of 1, and the priced rate, is the data set's own law.

    Attributes:
      shift: responses lie around other + shift·(own - other).
      rate: probability with which a sampled record is in the sample, in place of the priced one.
    """

    shift: jax.Array | float
    rate: jax.Array | float


class Sums(NamedTuple):
    """Sums over the steps of a run.

    Attributes:
      loss: L, the log-ratio of the densities of the data set and its neighbour.
      log_weight: log w, that of the data set and the law that was drawn from.
      centred: the loss of the response without noise, half of μ² where noise is Gaussian; L again
        where a response is not statistics and noise.
    """

    loss: Any
    log_weight: Any
    centred: Any


def _run(
    mechanism: Mechanism,
    states: tuple[State, State],
    key: jax.Array,
    worlds: tuple[Layout, Layout],
    tilt: Tilt,
    num_steps: int,
) -> Sums:
    """`Sums` of one run of the first world."""

    def step(carry: tuple[Any, Sums], key: jax.Array) -> tuple[tuple[Any, Sums], None]:
        states, sums = carry
        coins_key, noise_key = jax.random.split(key)
        coins = mechanism.coins(coins_key)
        if sampled_loss.poisson(coins) is None:
            own, other = protocol.in_each(
                lambda state, data: protocol.traced_once(mechanism.query)(state, data, coins)[0],
                list(zip(states, worlds, strict=True)),
            )
            around = jax.tree.map(
                lambda a, b: sampled_loss.shifted(a, b, jnp.float32(tilt.shift)), own, other
            )
            response = protocol.traced_once(mechanism.noise.sample)(noise_key, around)
            log_ratio = protocol.traced_once(mechanism.noise.log_ratio)
            loss = log_ratio(response, own, other)
            log_weight = log_ratio(response, own, around)
            log_weight = jnp.where(tilt.shift == 1, 0.0, log_weight)
            additive = jax.tree.structure(response) == jax.tree.structure(own)
            centred = log_ratio(own, own, other) if additive else loss
        else:
            response, loss, log_weight, centred = sampled_loss.step(
                mechanism, noise_key, coins, states, worlds, tilt.shift, tilt.rate
            )

        def next_state(state: State, data: Layout) -> State:
            after = protocol.traced_once(mechanism.update)(state, response, data)
            return after._replace(step=state.step + 1)

        first, second = protocol.in_each(next_state, list(zip(states, worlds, strict=True)))
        return ((first, second), jax.tree.map(jnp.add, sums, Sums(loss, log_weight, centred))), None

    nothing = Sums(*(jnp.float32(0) for _ in Sums._fields))
    (_, sums), _ = jax.lax.scan(step, (states, nothing), jax.random.split(key, num_steps))
    return sums


@partial(jax.jit, static_argnames=("num_steps", "batch"))
def _draw(
    mechanism: Mechanism,
    states: tuple[State, State],
    keys: jax.Array,
    worlds: tuple[Layout, Layout],
    tilt: Tilt,
    num_steps: int,
    batch: int,
) -> Sums:
    """`Sums` of a run of the first world for each key; one program for all pairs and tilts."""
    return jax.lax.map(
        lambda key: _run(mechanism, states, key, worlds, tilt, num_steps), keys, batch_size=batch
    )


@partial(jax.jit, static_argnames=("unit", "num_steps", "batch"))
def centred_losses(
    mechanism: Mechanism,
    start_key: jax.Array,
    key: jax.Array,
    data: Layout,
    stacked: neighbours.Neighbour,
    *,
    unit: Unit,
    num_steps: int,
    batch: int,
    reflected: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:
    """`Sums.centred` of one run of the data set against each of its neighbours.

    reflected: as of `sensitivity.distances`.
    """
    own = protocol.traced_once(mechanism.init)(start_key, data, None)

    def one(neighbour: neighbours.Neighbour) -> jax.Array:
        other = neighbours.apply(unit, data, neighbour)
        if reflected is not None:
            turned = layout.reflect_user(data, neighbour.address.user, reflected[1])
            other = jax.tree.map(partial(jnp.where, reflected[0]), turned, other)
        worlds = (data, other)
        states = (own, protocol.traced_once(mechanism.init)(start_key, worlds[1], None))
        return _run(
            mechanism, states, key, worlds, Tilt(1.0, sampled_loss.rate(mechanism)), num_steps
        ).centred

    return jax.lax.map(one, stacked, batch_size=batch)


class Pair(NamedTuple):
    """A pair of worlds in one direction: all that drawing its losses needs."""

    mechanism: Mechanism
    states: tuple[State, State]
    worlds: tuple[Layout, Layout]
    num_steps: int
    batch: int

    def draw(self, key: jax.Array, num: int, tilt: Tilt) -> tuple[Losses, np.ndarray]:
        """(Losses, `Sums.centred`) of `num` runs, on the host in float64."""
        at = Tilt(jnp.float32(tilt.shift), jnp.float32(tilt.rate))
        keys = jax.random.split(key, -(-num // CHUNK) * CHUNK).reshape(-1, CHUNK)

        def drawn(some: jax.Array) -> Sums:
            sums = _draw(
                self.mechanism, self.states, some, self.worlds, at, self.num_steps, self.batch
            )
            return Sums(*(np.asarray(part, np.float64) for part in sums))

        chunks = side_by_side.calls(drawn, list(keys))
        loss, log_weight, centred = (
            np.concatenate(parts)[:num] for parts in zip(*chunks, strict=True)
        )
        return Losses(loss, log_weight), centred
