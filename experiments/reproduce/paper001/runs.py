"""The runs behind all figures: what each trains, on what, for how long, and what it gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import accounting
from accounting.gaussian import step_from_noise_multiplier
from accounting.guarantee import Guarantee
from dpmf_jax.data import splits
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian
from dpmf_jax.mechanisms.gaussian import noisy_means
from dpmf_jax.protocol import Mechanism, Phase
from experiments.reproduce import store
from experiments.reproduce.paper001 import plans
from experiments.reproduce.paper001.stopping import RULES

# Of the whole price of "public-items", in ρ: what the noisy item means take that it centres by.
NOISY_MEANS_SHARE = 0.1


class Phases(NamedTuple):
    """earlier: run before `mechanism`, which starts from what they make public."""

    earlier: tuple[Phase, ...]
    mechanism: Mechanism


def _centred_by_noisy_means(config: gaussian.Config, num_steps: int) -> Phases:
    """At the price of `num_steps` steps of the config's noise, the means included."""
    assert config.noise_multiplier is not None
    of_means, of_training = noisy_means.split(config.noise_multiplier, num_steps, NOISY_MEANS_SHARE)
    means = noisy_means.Config(
        rating_range=config.rating_range,
        noise_multiplier=of_means,
        tau=config.tau,
        relation=config.relation,
        delta=config.delta,
    )
    training = gaussian.public_items(dataclasses.replace(config, noise_multiplier=of_training))
    return Phases(((noisy_means.mechanism(means), 1),), training)


# A run's phases, from its config and its number of steps. A config's noise is that of the whole
# price, by steps.
VARIANTS: Mapping[str, Callable[[gaussian.Config, int], Phases]] = {
    "published": lambda config, num_steps: Phases((), gaussian.mechanism(config)),
    "joint-noise": lambda config, num_steps: Phases((), gaussian.joint_noise(config)),
    "public-items": _centred_by_noisy_means,
    "non-private": lambda config, num_steps: Phases((), gaussian.non_private(config)),
}

# What a run is trained on: everything, or what a split leaves when it holds out the rest for a
# test.
HELD_OUT = 0.2
SPLIT_SEED = 0
PARTS = {"all": "all ratings", "held-out": f"{1 - HELD_OUT:.0%} at random, split seed {SPLIT_SEED}"}

TEST_STEPS = 50  # between two measurements on the ratings that are held out, on every device


class Run(NamedTuple):
    """One training. Runs of one variant, config, seed and part are one, however many steps each
    asks for; of `plans.FIXED_STEPS`, only with as many steps.

    variant: of `VARIANTS`.
    num_steps: needed; they give the training RMSE before update 0, …, num_steps - 1.
    series: a label.
    part: of `PARTS`.
    rule: of `stopping.RULES`; ends the run where it says so, num_steps is the most. Only on the
      part "all".
    """

    variant: str
    config: gaussian.Config
    seed: int
    num_steps: int
    series: str
    part: str = "all"
    rule: str | None = None

    @property
    def name(self) -> str:
        """A name for its folder, by variant, config, seed and part; no rating is in it."""
        config, z = self.config, self.config.noise_multiplier
        settings = [self.variant, dataclasses.asdict(config), self.seed, PARTS[self.part]]
        words = [self.variant, *([] if self.part == "all" else [self.part]), f"rank{config.rank}"]
        words += [] if z is None else [f"eps{step_from_noise_multiplier(z, plans.DELTA_STEP):.4g}"]
        words += [
            f"mu{config.learning_rate:g}",
            *(f"steps{steps}" for steps in self._fixed.values()),
        ]
        digest = store.digest([*settings, *self._fixed.values()], 8)
        return "-".join([*words, f"seed{self.seed}", digest])

    @property
    def agreed(self) -> dict[str, Any]:
        """What a stored run must agree with, but for the ratings; as JSON has it."""
        settings = {
            "variant": self.variant,
            "config": store.as_json(dataclasses.asdict(self.config)),
            "seed": self.seed,
            "part": PARTS[self.part],
        }
        return settings | self._fixed | ({"share": NOISY_MEANS_SHARE} if self._fixed else {})

    @property
    def _fixed(self) -> dict[str, int]:
        return {"steps": self.num_steps} if self.variant in plans.FIXED_STEPS else {}

    @property
    def phases(self) -> Phases:
        return VARIANTS[self.variant](self.config, self.num_steps)

    @property
    def mechanism(self) -> Mechanism:
        return self.phases.mechanism

    def guarantee(self, num_steps: int) -> Guarantee:
        """Of so many training steps and everything before them; seeded, as all runs are."""
        earlier, mechanism = self.phases
        parts = [phase.guarantee(steps) for phase, steps in earlier]
        return accounting.compose(*parts, mechanism.guarantee(num_steps)).with_seed()

    @property
    def tests(self) -> tuple[int, ...]:
        """The numbers of updates after which held-out errors are measured; the last ends it."""
        if self.part == "all":
            return ()
        if self.rule is not None:
            raise ValueError(
                f"a rule ends runs on all ratings only, got {self.rule!r} on {self.part!r}"
            )
        return (*range(TEST_STEPS, self.num_steps, TEST_STEPS), self.num_steps)

    def enough(self, loss: Sequence[float]) -> int | None:
        """How many of the losses this run asks for, once they are all there; None before."""
        if self.rule is not None:
            stop = RULES[self.rule](np.sqrt(np.asarray(loss[: self.num_steps], np.float64)))
            if stop is not None:
                return stop + 1
        return self.num_steps if len(loss) >= self.num_steps else None


class Curve(NamedTuple):
    """What a run gave.

    loss: mean squared errors before update 0, 1, 2, ….
    commits, devices: all that took part.
    seconds: its share of the wall time of runs of its shape, for these steps.
    test: RMSE on the held-out ratings by the number of updates done, at every `TEST_STEPS` and at
      the end, predictions clipped to the rating range as in `dpmf fit`; empty for the part "all".
    """

    loss: tuple[float, ...]
    commits: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: float
    test: Mapping[int, float] = MappingProxyType({})

    @property
    def rmse(self) -> np.ndarray:
        return np.sqrt(np.asarray(self.loss, np.float64))

    @property
    def test_rmse(self) -> float | None:
        """After the last update; None for the part "all"."""
        return self.test.get(len(self.loss))


def split_part(part: str, ratings: Ratings) -> tuple[Ratings, Ratings | None]:
    """What is trained on, and what is held out."""
    return (
        (ratings, None)
        if part == "all"
        else splits.random(ratings, fraction=HELD_OUT, seed=SPLIT_SEED)
    )
