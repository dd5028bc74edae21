"""Settings of paper 003's protocol with an untrusted recommender: checked on the host."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from accounting import guards
from accounting.iterations import Change
from dpmf_jax.mechanisms import claims
from dpmf_jax.mechanisms.federated.crowd import Population


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one run; host numbers, all public. Paper 003's letters in brackets.

    epsilon: as published, of each iteration [ε]; the paper states it once for all. Sound: the total
      of all iterations.
    rating_range: the declared smallest and largest rating; its width is Δ.
    rank: [d]. learning_rate: [γ]. regularization: of V [μ]. user_regularization: of U [λ].
    prior_count: the regularization of V weighs as much as so many ratings would [M]: Mμ. Equation
      (9) has 1; (1) and (6) have the number of ratings. Public: a constant, but for the number as
      published, where who rated what is public.
    center: subtracted from ratings; a public constant, 0 in the paper.
    population: None is S2, all users in every iteration; S3 otherwise.

    Of the sound variants only:
    num_iterations: [T], fixed beforehand; the noise is made for them. `statistics` has one.
    clip_norm: bound on the L1 norm of a user's whole message of one iteration, over all items [C].
    rounding_step: of the fixed-point grid [h]; None is the scale of the noise over 2^20, so that
      2,048 of these scales fit into 32 bits on either side of 0. Sums beyond wrap around, which
      costs no privacy and all sense: where as many users may push one way, take at least their
      number times C over 2^31 (`dpmf fit` does).
    change: "replace" hides what all of a user's data are, "remove" that the user takes part.
    honest_shares: so many users other than the protected one add their noise and keep it to
      themselves; each adds one part in so many [k']. None: everybody else who takes part (S3:
      at_most - 1), so nobody may drop out or collude. With fewer of them online than that, and the
      protected one, an iteration releases nothing.
    item_learning_rate: of V's step along the noisy gradient over the number who take part.
    """

    epsilon: float
    rating_range: tuple[float, float]
    rank: int = 50
    learning_rate: float = 2**-5
    regularization: float = 0.001
    user_regularization: float = 0.001
    center: float = 0.0
    population: Population | None = None
    num_iterations: int | None = None
    clip_norm: float = 1.0
    rounding_step: float | None = None
    change: Change = "replace"
    honest_shares: int | None = None
    item_learning_rate: float = 1.0
    prior_count: float = 1.0

    def __post_init__(self) -> None:
        claims.width(self.rating_range)
        guards.fields(
            self,
            guards.positive,
            "epsilon",
            "learning_rate",
            "clip_norm",
            "item_learning_rate",
            "prior_count",
            optional=("rounding_step",),
        )
        guards.fields(self, guards.nonnegative, "regularization", "user_regularization")
        guards.finite("center", self.center)
        guards.fields(self, guards.count, "rank", optional=("num_iterations", "honest_shares"))
        if self.change not in ("replace", "remove"):
            raise ValueError(f'change must be "replace" or "remove"; got {self.change!r}')

    @property
    def range_width(self) -> float:
        """Δ, in rating units."""
        return claims.width(self.rating_range)

    @property
    def published_scale(self) -> float:
        """b = 2Δ√d/ε of Lemma 1, of each coordinate's Laplace noise.

        η and every iteration's noise have the same.
        """
        return 2 * self.range_width * math.sqrt(self.rank) / self.epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Fixed point of the sound variants.

    step: h.
    clip_steps: ⌊C/h⌋, a whole number.
    scale: b, of the noise, in units of the messages.
    scale_steps: b/h.
    """

    step: float
    clip_steps: int
    scale: float
    scale_steps: float


def grid(config: Config, scale: float) -> Grid:
    """The grid for noise of this scale.

    One user moves a sum by clip_steps at most, so clip_steps/scale_steps <= C/b.

    Raises: ValueError where C is less than one step or more than 2^30 of them, or the scale more
      than 2^28.
    """
    step = scale * 2.0**-20 if config.rounding_step is None else config.rounding_step
    clip_steps = int(Fraction(config.clip_norm) / Fraction(step))
    if not 1 <= clip_steps <= 2**30:
        raise ValueError(
            f"clip_norm must be from 1 to 2^30 rounding steps; got {config.clip_norm} at a step of"
            f" {step}"
        )
    exact = Fraction(scale) / Fraction(step)
    if not exact <= 2**28:
        raise ValueError(
            f"rounding_step must be at least 2^-28 of the noise's scale {scale}; got {step}"
        )
    scale_steps = float(exact)
    if Fraction(scale_steps) < exact:
        scale_steps = math.nextafter(scale_steps, math.inf)
    return Grid(step=step, clip_steps=clip_steps, scale=scale, scale_steps=scale_steps)
