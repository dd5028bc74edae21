"""What a release spends, phase by phase, before anybody asks for ε: data for `accounting.price`.

A loss says which noise was drawn how often. It keeps more than an (ε, δ) would: losses of one kind
add up exactly, whatever their order, and the price of a user with m ratings follows from the noise.
The neighbouring relation is folded in where the loss is made (z = σ/Δ with the Δ of that relation),
except that subsampling depends on it by itself.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, get_args

from accounting import gaussian, guards, repetition

Unit = Literal["rating value", "rating presence", "user"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian:
    """J adaptive Gaussian steps on all of the data.

    Attributes:
      noise_multiplier: z = σ/Δ of a step, Δ its L2 sensitivity for the relation of the release.
      num_steps: J; ρ = J/(2z²), `accounting.gaussian.rho`.
      user_rho: (a, b), a user who changes m ratings pays (a·m² + b·m)·ρ; None where no such price
        is known.
      distance: of the noise of one step from normal noise, in total variation; it costs δ.
    """

    noise_multiplier: float
    num_steps: int
    user_rho: tuple[float, float] | None = None
    distance: float = 0.0

    def __post_init__(self):
        _set(
            self,
            noise_multiplier=guards.positive("noise_multiplier", self.noise_multiplier),
            num_steps=guards.count("num_steps", self.num_steps, 0),
            distance=guards.delta("distance", self.distance),
        )
        if self.user_rho is not None:
            weights = (
                ()
                if isinstance(self.user_rho, str)
                else tuple(float(weight) for weight in self.user_rho)
            )
            if not (
                len(weights) == 2
                and all(0 <= w < math.inf for w in weights)
                and sum(weights) >= 1 - 1e-9
            ):
                raise ValueError(
                    "user_rho must be two numbers of at least 0 that price one rating at 1 or"
                    f" more, got {weights!r}"
                )
            object.__setattr__(self, "user_rho", weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsampledGaussian:
    """J Gaussian steps, each on a fresh, secret Poisson sample.

    Where the unit of the release is a rating's presence, a record is a rating and its clipped part
    is there or not; where it is a rating's value, it is −C against +C; where it is the user, a
    record is all that a user gave.

    Attributes:
      noise_multiplier: z = σ/C, C the clip of one record, in every relation.
      sampling_rate: q in (0, 1], the probability with which each record takes part, public.
      num_steps: J.
      distance: of the noise of one step from normal noise, in total variation; it costs δ.
    """

    noise_multiplier: float
    sampling_rate: float
    num_steps: int
    distance: float = 0.0

    def __post_init__(self):
        _set(
            self,
            noise_multiplier=guards.positive("noise_multiplier", self.noise_multiplier),
            sampling_rate=guards.rate("sampling_rate", self.sampling_rate),
            num_steps=guards.count("num_steps", self.num_steps, 0),
            distance=guards.delta("distance", self.distance),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pure:
    """k rounds that are pure differentially private at ε/k each, such as Laplace noise or reports.

    Attributes:
      epsilon: ε of all rounds together by basic composition, at least 0; inf where no finite ε
        holds.
      num_rounds: k.
    """

    epsilon: float
    num_rounds: int = 1

    def __post_init__(self):
        _set(
            self,
            epsilon=guards.from_zero("epsilon", self.epsilon),
            num_rounds=guards.count("num_rounds", self.num_rounds, 1),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Approximate:
    """J releases of which only this is known: each is (ε, δ) differentially private.

    They only add up.

    Attributes:
      epsilon, delta: of each; δ in (0, 1).
      num_steps: J; a total J·δ of 1 or more says nothing and is refused.
    """

    epsilon: float
    delta: float
    num_steps: int = 1

    def __post_init__(self):
        _set(
            self,
            epsilon=guards.from_zero("epsilon", self.epsilon),
            delta=guards.probability("delta", self.delta),
            num_steps=guards.count("num_steps", self.num_steps, 1),
        )
        if not self.num_steps * self.delta < 1:
            raise ValueError(
                f"{self.num_steps} releases at delta {self.delta!r} add up to "
                f"{self.num_steps * self.delta:g}, which is 1 or more: that says nothing"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestOf:
    """The best of a random, secret number of runs of Gaussian steps, see `accounting.repetition`.

    Only the best run is released, by a score that is a step of each run.

    Attributes:
      run: the steps of one run, its score among them.
      stop: γ in (0, 1], of the law of the number of runs.
      shape: η of that law, at least 0.
    """

    run: tuple[Gaussian, ...]
    stop: float
    shape: float

    def __post_init__(self):
        _set(
            self,
            run=merged(tuple(self.run)),
            stop=guards.rate("stop", self.stop),
            shape=guards.nonnegative("shape", self.shape),
        )
        if not (self.run and all(isinstance(step, Gaussian) for step in self.run)):
            raise ValueError(f"a run must be Gaussian steps, at least one, got {self.run!r}")

    @property
    def mean_runs(self) -> float:
        """How many runs there are on average."""
        return repetition.mean_runs(self.stop, self.shape)

    @property
    def num_steps(self) -> int:
        """Of the run that is released."""
        return num_steps(self.run)

    @property
    def distance(self) -> float:
        """Of the noise of all runs from normal noise: each run's, as often as there are runs."""
        return self.mean_runs * distance(self.run)

    @property
    def rho(self) -> float:
        """ρ of one run."""
        return math.fsum(gaussian.rho(step.noise_multiplier, step.num_steps) for step in self.run)


Loss = Gaussian | SubsampledGaussian | Pure | Approximate | BestOf

_KIND_OF: dict[type, str] = {
    Gaussian: "gaussian",
    SubsampledGaussian: "subsampled gaussian",
    Pure: "pure",
    Approximate: "approximate",
    BestOf: "best of several runs",
}


def num_steps(losses: Sequence[Loss]) -> int:
    """Steps, rounds and releases of all phases; of the best of several runs, its own."""
    return sum(loss.num_rounds if isinstance(loss, Pure) else loss.num_steps for loss in losses)


def merged(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """The same losses with equal steps counted together, and without phases that have no step.

    They keep the order of their first steps.

    A run cut into chunks has the losses of the whole. Pure rounds are merged only where each has
    the same ε. Of several choices among runs each stays by itself.
    """
    counts: dict[Any, Any] = {}
    for place, loss in enumerate(losses):
        if isinstance(loss, BestOf):
            counts[place, loss] = 1
        elif isinstance(loss, Pure):
            key = (Pure, Decimal(repr(loss.epsilon)) / loss.num_rounds)
            counts[key] = (*counts.get(key, ()), loss)
        else:
            key = dataclasses.replace(loss, num_steps=1)
            counts[key] = counts.get(key, 0) + loss.num_steps
    out: list[Loss] = []
    for key, count in counts.items():
        if isinstance(key, tuple) and isinstance(key[1], BestOf):
            out.append(key[1])
        elif isinstance(key, tuple):
            rounds = sum(loss.num_rounds for loss in count)
            out.append(Pure(epsilon=total(loss.epsilon for loss in count), num_rounds=rounds))
        elif count:
            out.append(dataclasses.replace(key, num_steps=count))
    return tuple(out)


def total(epsilons) -> float:
    """The sum of decimals, as the nearest float: ten times 0.1 is 1.0.

    Adding floats may end a digit above.

    A float stands for the shortest decimal that names it, which is how its user wrote it.
    """
    values = [float(epsilon) for epsilon in epsilons]
    if math.inf in values:
        return math.inf
    return float(sum((Decimal(repr(value)) for value in values), Decimal(0)))


def distance(losses: Sequence[Loss]) -> float:
    """How far the noise of all steps is from normal noise, in total variation: it adds up."""
    return math.fsum(
        loss.distance if isinstance(loss, BestOf) else loss.num_steps * loss.distance
        for loss in losses
        if isinstance(loss, Gaussian | SubsampledGaussian | BestOf)
    )


def normal(loss: Loss) -> Loss:
    """The same steps with noise that is normal to the last bit."""
    if isinstance(loss, BestOf):
        run = tuple(dataclasses.replace(step, distance=0.0) for step in loss.run)
        return dataclasses.replace(loss, run=run)
    if isinstance(loss, Gaussian | SubsampledGaussian):
        return dataclasses.replace(loss, distance=0.0)
    return loss


def times(epsilon: float, count: int) -> float:
    """`total` of the same number `count` times."""
    return (
        math.inf if count and epsilon == math.inf else float(Decimal(repr(float(epsilon))) * count)
    )


def to_dict(loss: Loss) -> dict[str, Any]:
    """For JSON: the kind and the fields; infinity as the string "inf"."""
    fields = {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss)}
    if isinstance(loss, BestOf):
        fields["run"] = tuple(to_dict(step) for step in loss.run)
    plain = {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }
    return {"kind": _KIND_OF[type(loss)]} | {
        n: "inf" if v == math.inf else v for n, v in plain.items()
    }


def from_dict(values: Mapping[str, Any]) -> Loss:
    """The inverse of `to_dict`.

    Raises:
      ValueError: the kind is unknown, a field is missing, unknown or out of range.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"a loss must be an object, got {type(values).__name__}")
    fields = dict(values)
    kinds: dict[str, Any] = {name: kind for kind, name in _KIND_OF.items()}
    kind = fields.pop("kind", None)
    if not (isinstance(kind, str) and kind in kinds):
        raise ValueError(f"the kind of a loss must be one of {', '.join(kinds)}, got {kind!r}")
    if fields.get("epsilon") == "inf":
        fields["epsilon"] = math.inf
    if kind == _KIND_OF[BestOf]:
        if not isinstance(run := fields.get("run"), list):
            raise ValueError(f"a run must be a list of losses, got {run!r}")
        fields["run"] = tuple(from_dict(step) for step in run)
    try:
        return kinds[kind](**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a loss of the wrong shape: {error}") from error


def check_unit(unit: Any) -> Unit:
    """The unit itself. Raises: ValueError for one that is none of ours."""
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {unit!r}")
    return unit


def _set(loss: Any, **checked: Any) -> None:
    """What the guards gave back, floats and ints, in place of what was given."""
    for name, value in checked.items():
        object.__setattr__(loss, name, value)
