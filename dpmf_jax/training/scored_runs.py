"""The runs of a private choice of settings: how many there are, and how each is scored.

How many runs there were is secret, and so are those that are not the best: nothing here keeps them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from accounting.loss import Gaussian
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models.model import Model
from dpmf_jax.noise import keys, whole
from dpmf_jax.protocol import Factors, Phase
from dpmf_jax.training import fit as fitting
from dpmf_jax.training.measure import Diverged


class Score(NamedTuple):
    """How runs are scored.

    parts: int, S; each user's part of the score is a whole number from 0 to S.
    scale: σ of the noise, in the same unit, a number that float32 has.
    largest: the mean squared error that counts S, in squared rating units.
    """

    parts: int
    scale: float
    largest: float

    @property
    def loss(self) -> Gaussian:
        """What a score spends. A user who changes m ratings changes one part, as for one."""
        z = math.nextafter(self.scale / self.parts, 0.0)
        return Gaussian(noise_multiplier=z, num_steps=1, distance=whole.DISTANCE)


class Scored(NamedTuple):
    """A run: the place of its settings, and its noisy score in parts; the smaller the better."""

    candidate: int
    noisy: int


def best(
    candidates: Sequence[tuple[Sequence[Phase], dict[str, Any]]],
    score: Score,
    law: tuple[float, float],
    train: Ratings,
    scored: Ratings,
    seed: int | None,
    report: Callable[[str], None],
) -> tuple[Model, Scored]:
    """The model of the run with the best noisy score, and that score.

    Args:
      candidates: (phases, settings that a model keeps) of each; a run draws one, each as likely.
      score: how runs are scored.
      law: (stop, shape) of the number of runs.
      train, scored: what runs fit, and what they are scored on.
      seed: of an experiment; None draws from the operating system.
      report: told that a run begins.

    Raises: Diverged where that run has no model.
    """
    draw = Draws(seed)
    found: tuple[Model | Diverged, Scored] | None = None
    for number in range(number_of_runs(draw.happens, *law)):
        place = draw.below(len(candidates))
        (*earlier, (mechanism, steps)), kept = candidates[place]
        report("a run begins")
        made: Model | Diverged
        try:
            made = fitting.fit(
                train,
                mechanism,
                num_steps=steps,
                earlier=earlier,
                seed=None if seed is None else seed + number,
                settings=kept,
            )
            parts = score_parts(made.all_factors(), scored, score)
        except Diverged as error:
            made, parts = error, score.parts * (np.bincount(scored.user) > 0)
        noisy = int(np.sum(parts, dtype=np.int64)) + draw.noise(score.scale)
        if found is None or noisy < found[1].noisy:
            found = made, Scored(place, noisy)
    assert found is not None  # there is one run at least
    made, its_score = found
    if isinstance(made, Diverged):
        raise made
    return made, its_score


def score_parts(factors: Factors, scored: Ratings, score: Score) -> np.ndarray:
    """int64[users]: each user's part of the score, from 0 to S; 0 where nothing is held out.

    A user's part is computed of her own rows, by the same operations whatever others have.
    """
    users, items = (
        np.asarray(part, np.float64) for part in (factors.user_factors, factors.item_factors)
    )
    center = np.broadcast_to(np.asarray(factors.center, np.float64), (len(items),))
    predicted = center[scored.item]
    with np.errstate(invalid="ignore", over="ignore"):  # a user's own, and counted as the worst
        for k in range(users.shape[1]):
            predicted = predicted + users[scored.user, k] * items[scored.item, k]
    low, high = scored.rating_range
    errors = (np.clip(predicted, low, high) - scored.value) ** 2
    number = np.bincount(scored.user, minlength=scored.num_users)
    total = np.bincount(scored.user, weights=errors, minlength=scored.num_users)
    share = np.where(number > 0, total / np.maximum(number, 1), 0.0) / score.largest
    share = np.where(np.isnan(share), 1.0, share)
    return np.rint(score.parts * np.clip(share, 0.0, 1.0)).astype(np.int64)


class Draws:
    """What is chosen at random: by the operating system, or by a seed."""

    def __init__(self, seed: int | None):
        self._seeded = seed is not None
        self._random = random.SystemRandom() if seed is None else random.Random(f"tune {seed}")

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def happens(self, probability: Fraction) -> bool:
        return self.below(probability.denominator) < probability.numerator

    def noise(self, scale: float) -> int:
        """⌊N(0, scale²)⌉."""
        key = keys.from_seed(self.below(2**63)) if self._seeded else keys.from_operating_system()
        drawn = whole.rounded_normal(scale).sample(key, np.zeros(1, np.uint32))
        return int(np.asarray(drawn).astype(np.int32)[0])


def number_of_runs(happens: Callable[[Fraction], bool], stop: float, shape: float) -> int:
    """K, by the law of `accounting.repetition` to the last bit, for shapes up to 1.

    A number from the geometric law is kept with probability Π_{0 < l < k} (l + η)/(l + 1).

    happens: (probability) -> whether something of that probability happens.
    """
    ends, eta = Fraction(stop), Fraction(shape)
    while True:
        k = 1
        while not happens(ends):
            k += 1
        if all(happens((place + eta) / (place + 1)) for place in range(1, k)):
            return k
