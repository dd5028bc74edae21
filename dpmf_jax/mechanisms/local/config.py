"""Settings of paper 004's mechanisms: checked on the host, then leaves and static parts."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Literal

import jax
import jax.numpy as jnp

from accounting import guards
from dpmf_jax.kernels import projection
from dpmf_jax.noise import laws as noise

Schedule = Literal["every-round", "partition"]
Lift = Literal["pseudo-inverse", "transpose"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings; host numbers, all public. Paper 004's letters in brackets.

    epsilon: of all reports of one user together [ε].
    num_rounds: [k].
    rank: [d].
    learning_rate: γ of the first round; round t has γ/t.
    user_learning_rate: γ of the users' own steps; None is learning_rate, as in the paper. V's
      gradient is noisy, and a mean over all users, who rated few of its items: a rate that suits
      one side suits the other badly.
    regularization: [λ], of both sides.
    center: a public constant, subtracted from ratings.
    clip: c > 0; entries are clipped to [-c, c], and reports scaled by c. The paper has 1.
    schedule: "every-round": everybody reports in each round, at ε/k [the paper]. "partition": users
      are split into k groups at random, and each group reports in one round, with all of ε.
    num_projected: q, rows of Φ; `gd_dr` only.
    law: of the entries of Φ.
    lift: how the image of Φ comes back.
    fresh_projection: another Φ in each round, from a public seed; needs lift "transpose".
    """

    epsilon: float
    num_rounds: int
    rank: int = 15
    learning_rate: float = 1.0
    user_learning_rate: float | None = None
    regularization: float = 1e-8
    center: float = 0.0
    clip: float = 1.0
    schedule: Schedule = "every-round"
    num_projected: int | None = None
    law: projection.Law = "gaussian"
    lift: Lift = "pseudo-inverse"
    fresh_projection: bool = False

    def __post_init__(self) -> None:
        guards.fields(
            self,
            guards.positive,
            "epsilon",
            "learning_rate",
            "clip",
            optional=("user_learning_rate",),
        )
        guards.nonnegative("regularization", self.regularization)
        guards.finite("center", self.center)
        guards.fields(self, guards.count, "num_rounds", "rank", optional=("num_projected",))
        if self.fresh_projection and self.lift != "transpose":
            raise ValueError(
                'fresh_projection needs lift="transpose": a pseudo-inverse in each round costs q²'
                " times items"
            )

    @property
    def epsilon_report(self) -> float:
        """ε of one report: ε/k rounded down, or ε where each user reports once."""
        if self.schedule == "partition":
            return self.epsilon
        each = self.epsilon / self.num_rounds
        return (
            each
            if Fraction(each) * self.num_rounds <= Fraction(self.epsilon)
            else math.nextafter(each, 0)
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Params:
    epsilon: float | jax.Array  # read on the host alone, so a float
    num_rounds: int | jax.Array
    gain: jax.Array
    learning_rate: jax.Array
    user_learning_rate: jax.Array
    regularization: jax.Array
    center: jax.Array
    clip: jax.Array
    rank: int = dataclasses.field(metadata={"static": True})
    schedule: Schedule = dataclasses.field(metadata={"static": True})
    num_projected: int | None = dataclasses.field(metadata={"static": True})
    law: projection.Law = dataclasses.field(metadata={"static": True})
    lift: Lift = dataclasses.field(metadata={"static": True})
    fresh_projection: bool = dataclasses.field(metadata={"static": True})


def make_params(config: Config) -> Params:
    """The arrays and static parts that all parts of a mechanism share."""
    f32 = jnp.float32
    return Params(
        epsilon=config.epsilon,
        gain=f32(noise.one_bit_gain(config.epsilon_report)),
        learning_rate=f32(config.learning_rate),
        user_learning_rate=f32(
            config.learning_rate if config.user_learning_rate is None else config.user_learning_rate
        ),
        regularization=f32(config.regularization),
        center=f32(config.center),
        clip=f32(config.clip),
        num_rounds=config.num_rounds,
        rank=config.rank,
        schedule=config.schedule,
        num_projected=config.num_projected,
        law=config.law,
        lift=config.lift,
        fresh_projection=config.fresh_projection,
    )
