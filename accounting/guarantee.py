"""The claim that goes with a release: what is protected, from whom, at which price, and how far that is proved."""

import dataclasses
import math
import operator
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from accounting import gaussian, statement
from accounting.statement import DIGITS

Unit = Literal["rating value", "rating presence", "user"]
Status = Literal["proved", "claimed", "none"]  # strongest first

SELECTION = (
    "choosing the best of several runs, and hyperparameter search on the same ratings: "
    "the price is that of one run, set up without looking at them"
)


class UserPrice(NamedTuple):
    """What all ratings of one user cost together: (epsilon, the guarantee's delta), with the guarantee's status."""

    num_ratings: int
    rho: float
    epsilon: float
    status: Status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a release promises: for neighbours by `relation`, P(S) <= exp(epsilon) P'(S) + delta for every event S.

    `str()` is the privacy statement, `to_dict()` goes to JSON. `gaussian_guarantee`, `no_guarantee` and `compose` make
    these; made by hand, the numbers must agree with each other, and an ε below the price of ρ is refused.

    Attributes:
      mechanism: its name.
      epsilon: rounded up at 4 decimals; inf where no finite ε holds, and always with status none.
      delta: in [0, 1). A total that reaches 1, as J·δ of basic composition does, says nothing and is refused.
      unit: whose change is hidden.
      relation: a sentence, which data sets are neighbours.
      released: the names of what the world may see.
      trust_model: a sentence, who sees what.
      steps: of training.
      status: "proved"; "claimed": a paper says so and it does not hold in general; "none".
      rho: of the whole release, which is nothing but Gaussian steps, `gaussian.rho`; None for other mechanisms.
      noise_multiplier: z = σ/Δ of every step; None where steps differ or there is no noise.
      sensitivity: Δ, the L2 sensitivity of one step, in the units of σ; None where steps differ or none holds.
      largest_change: of one rating's value, that the price covers; None where it covers any, or none.
      accountants: ε by accountant, not rounded.
      user_rho: (a, b), a user who changes m ratings pays (a·m² + b·m)·ρ; None where no such price is known.
      assumptions: sentences, what the claim rests on.
      not_covered: sentences; `SELECTION` is always among them.
      seeded: the noise can be replayed by whoever knows the seed, so nothing holds for the outside world.

    Raises:
      ValueError: a field out of range, or fields that contradict each other.
    """

    mechanism: str
    epsilon: float
    delta: float
    unit: Unit
    relation: str
    released: tuple[str, ...]
    trust_model: str
    steps: int
    status: Status
    rho: float | None = None
    noise_multiplier: float | None = None
    sensitivity: float | None = None
    largest_change: float | None = None
    accountants: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    user_rho: tuple[float, float] | None = None
    assumptions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    seeded: bool = False

    def __post_init__(self):
        for name in ("released", "assumptions", "not_covered"):
            if isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} must be a sequence of texts, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        if SELECTION not in self.not_covered:
            object.__setattr__(self, "not_covered", (*self.not_covered, SELECTION))
        object.__setattr__(self, "accountants", dict(self.accountants))
        if self.user_rho is not None:
            object.__setattr__(self, "user_rho", tuple(self.user_rho))
        _check(self)

    @property
    def user_price(self) -> str | None:
        """A sentence: what a user with m ratings pays; None where the unit is the user or no price is known."""
        if self.status == "none" or self.user_rho is None or self.rho is None:
            return None
        a, b = self.user_rho
        terms = [f"{weight:g}·{power}" for weight, power in ((a, "m²"), (b, "m")) if weight]
        examples = ", ".join(f"m = {m}: ε = {self.for_user(m).epsilon:.{DIGITS}f}" for m in (20, 100))
        claim = "" if self.status == "proved" else " (a claim as well, not proved)"
        return f"a user with m ratings pays ({' + '.join(terms)}) times ρ{claim}; {examples}"

    def for_user(self, num_ratings: int) -> UserPrice:
        """The price of all m ratings of one user, by the same δ, relation and status as the guarantee.

        Raises:
          ValueError: m is not an integer of at least 1, or no such price is known.
        """
        if self.status == "none" or self.rho is None or self.user_rho is None:
            raise ValueError(f"{self.mechanism}: no price per user is known")
        if not (isinstance(num_ratings, int) and num_ratings >= 1):
            raise ValueError(f"num_ratings must be an integer of at least 1, got {num_ratings!r}")
        a, b = self.user_rho
        rho = self.rho * max(1.0, a * num_ratings**2 + b * num_ratings)
        return UserPrice(num_ratings, rho, _stated(self.status, rho, self.delta), self.status)

    def dp_event(self):
        """The release as a dp_accounting `DpEvent`, the relation being folded into z; None where there is none.

        Phases of different noise are, together, exactly one Gaussian with their total ρ.
        """
        import dp_accounting

        if self.status == "none":
            return dp_accounting.NonPrivateDpEvent()
        if self.noise_multiplier is not None:
            return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(self.noise_multiplier), self.steps)
        if self.rho is None:
            return None
        if self.rho == 0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * self.rho))

    def with_seed(self, seeded: bool = True) -> "Guarantee":
        """The same claim for a run whose noise comes from a seed: an experiment, not a release."""
        return dataclasses.replace(self, seeded=seeded)

    @property
    def statement(self) -> str:
        """The privacy statement, several lines of at most 110 characters."""
        return "\n".join(statement.lines(self))

    @property
    def headline(self) -> str:
        """The guarantee in one line: status, ε rounded up, δ, unit, steps, what is released."""
        return statement.headline(self)

    def __str__(self) -> str:
        return self.statement

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every field (infinity as the string "inf") and, for the reader, `user_price` and `statement`."""
        fields = {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {**fields, "user_price": self.user_price, "statement": self.statement}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """The inverse of `to_dict`; `user_price` and `statement` are made anew, never read.

        Raises:
          ValueError: a key is unknown or missing, a value has the wrong type, or the values contradict each other.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a guarantee must be an object, got {type(values).__name__}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - set(fields) - {"user_price", "statement"}):
            raise ValueError(f"unknown keys in a guarantee: {', '.join(map(str, unknown))}")
        if missing := sorted(set(fields) - set(values)):
            raise ValueError(f"missing keys in a guarantee: {', '.join(missing)}")
        try:
            return cls(**{name: _from_json(name, values[name]) for name in fields})
        except TypeError as error:
            raise ValueError(f"a value of the wrong type in a guarantee: {error}") from error


def gaussian_guarantee(
    *,
    mechanism: str,
    noise_multiplier: float,
    num_steps: int,
    delta: float,
    sensitivity: float,
    unit: Unit,
    relation: str,
    released: tuple[str, ...],
    trust_model: str,
    status: Literal["proved", "claimed"],
    assumptions: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
    user_rho: tuple[float, float] | None = None,
    largest_change: float | None = None,
    seeded: bool = False,
) -> Guarantee:
    """The guarantee of J adaptive Gaussian steps of noise σ = z·Δ.

    Args:
      noise_multiplier: z = σ/Δ, the numbers that the noise itself reads; Δ is already the one of `relation`.
      num_steps: J, fixed beforehand.
      sensitivity: Δ, for the record; the price depends on z alone.
      status: "proved" makes `epsilon` the exact ε, "claimed" the paper's closed form; both rounded up at 4 decimals.
      user_rho: (a, b) of `Guarantee`: (½, ½) for joint noise, (1, 0) for public items.

    Returns:
      A guarantee with every accountant in `accountants`. The first call imports dp_accounting, about a second.

    Raises:
      ValueError: from `gaussian.rho` and `Guarantee`; z is never 0, infinite or NaN.
    """
    noise_multiplier, num_steps, delta = float(noise_multiplier), operator.index(num_steps), float(delta)
    rho = gaussian.rho(noise_multiplier, num_steps)
    return Guarantee(
        mechanism=mechanism,
        epsilon=_stated(status, rho, delta),
        delta=delta,
        unit=unit,
        relation=relation,
        released=released,
        trust_model=trust_model,
        steps=num_steps,
        status=status,
        rho=rho,
        noise_multiplier=noise_multiplier,
        sensitivity=float(sensitivity),
        largest_change=largest_change,
        accountants=gaussian.accountants(noise_multiplier, num_steps, delta),
        user_rho=user_rho,
        assumptions=assumptions,
        not_covered=not_covered,
        seeded=seeded,
    )


def no_guarantee(
    *,
    mechanism: str,
    num_steps: int,
    released: tuple[str, ...],
    trust_model: str = "none: whoever sees what is released may learn any rating",
    unit: Unit = "rating value",
    seeded: bool = False,
) -> Guarantee:
    """What a path without noise promises: nothing. Its ε is infinite and its statement says so."""
    return Guarantee(
        mechanism=mechanism,
        epsilon=math.inf,
        delta=0.0,
        unit=unit,
        relation="none: no two data sets are hidden from each other",
        released=released,
        trust_model=trust_model,
        steps=num_steps,
        status="none",
        not_covered=("everything",),
        seeded=seeded,
    )


def compose(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of phases that run one after the other on the same ratings, each seeing what the earlier released.

    ρ adds up; the status is the weakest, and decides which ε is stated; one phase without a guarantee leaves none.

    Raises:
      ValueError: no phase, a phase without ρ, or phases that differ in unit, relation or delta; it names them.
    """
    if not guarantees:
        raise ValueError("nothing to compose")
    if len(guarantees) == 1:
        return guarantees[0]
    mechanism = " + ".join(phase.mechanism for phase in guarantees)
    released = _union(phase.released for phase in guarantees)
    trust_model = "; ".join(_union((phase.trust_model,) for phase in guarantees))
    seeded = any(phase.seeded for phase in guarantees)
    steps = sum(phase.steps for phase in guarantees)
    status = max((phase.status for phase in guarantees), key=get_args(Status).index)
    if status == "none":
        return no_guarantee(
            mechanism=mechanism, num_steps=steps, released=released, trust_model=trust_model, seeded=seeded
        )
    for name in ("unit", "relation", "delta"):
        if len(values := {getattr(phase, name) for phase in guarantees}) > 1:
            raise ValueError(f"phases differ in {name}: {'; '.join(sorted(map(str, values)))}")
    rhos = [phase.rho for phase in guarantees if phase.rho is not None]
    if len(rhos) < len(guarantees):
        missing = ", ".join(phase.mechanism for phase in guarantees if phase.rho is None)
        raise ValueError(f"phases without a ρ cannot be added up: {missing}")
    first, rho = guarantees[0], math.fsum(rhos)
    same = all(
        (phase.noise_multiplier, phase.sensitivity) == (first.noise_multiplier, first.sensitivity)
        for phase in guarantees
    )
    return Guarantee(
        mechanism=mechanism,
        epsilon=_stated(status, rho, first.delta),
        delta=first.delta,
        unit=first.unit,
        relation=first.relation,
        released=released,
        trust_model=trust_model,
        steps=steps,
        status=status,
        rho=rho,
        noise_multiplier=first.noise_multiplier if same else None,
        sensitivity=first.sensitivity if same else None,
        largest_change=min((p.largest_change for p in guarantees if p.largest_change is not None), default=None),
        accountants=gaussian.accountants(1 / math.sqrt(2 * rho), 1, first.delta) if rho > 0 else first.accountants,
        user_rho=_mean_user_rho(guarantees, rho),
        assumptions=_union(phase.assumptions for phase in guarantees),
        not_covered=_union(phase.not_covered for phase in guarantees),
        seeded=seeded,
    )


def _price(status: Status, rho: float, delta: float) -> float:
    if delta == 0:
        return math.inf if rho > 0 else 0.0  # no Gaussian has a finite pure ε
    return gaussian.epsilon_exact(rho, delta) if status == "proved" else gaussian.epsilon_closed_form(rho, delta)


def _stated(status: Status, rho: float, delta: float) -> float:
    return gaussian.round_up(_price(status, rho, delta), DIGITS)


def _mean_user_rho(guarantees, rho):
    """Σ ρ_k (a_k m² + b_k m) as ρ (a m² + b m)."""
    if rho == 0 or any(phase.user_rho is None for phase in guarantees):
        return guarantees[0].user_rho if rho == 0 else None
    return tuple(math.fsum(phase.rho * phase.user_rho[k] for phase in guarantees) / rho for k in (0, 1))


def _union(groups) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for group in groups for text in group))


def _check(guarantee: Guarantee) -> None:
    g = guarantee
    for name in ("mechanism", "relation", "trust_model"):
        if not (isinstance(value := getattr(g, name), str) and value.strip() and value.isprintable()):
            raise ValueError(f"{name} must be one line of text, got {value!r}")
    for name in ("released", "assumptions", "not_covered"):
        if not all(isinstance(text, str) and text.strip() and text.isprintable() for text in getattr(g, name)):
            raise ValueError(f"{name} must be lines of text, got {getattr(g, name)!r}")
    for name, allowed in (("unit", get_args(Unit)), ("status", get_args(Status))):
        if getattr(g, name) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(g, name)!r}")
    if not isinstance(g.seeded, bool):
        raise ValueError(f"seeded must be true or false, got {g.seeded!r}")
    if isinstance(g.steps, bool) or not isinstance(g.steps, int) or g.steps < 0:
        raise ValueError(f"steps must be an integer of at least 0, got {g.steps!r}")
    if not (_is_number(g.epsilon) and g.epsilon >= 0):
        raise ValueError(f"epsilon must be at least 0, got {g.epsilon!r}")
    if not (_is_number(g.delta) and 0 <= g.delta < 1):
        raise ValueError(f"delta must be at least 0 and below 1, where it would say nothing, got {g.delta!r}")
    if not all(isinstance(name, str) and _is_number(value) and value >= 0 for name, value in g.accountants.items()):
        raise ValueError(f"accountants must be numbers of at least 0 by name, got {g.accountants!r}")
    for name in ("rho", "noise_multiplier", "sensitivity", "largest_change"):
        value = getattr(g, name)
        if value is not None and not (_is_number(value) and 0 <= value < math.inf and (value > 0 or name == "rho")):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
    if g.user_rho is not None and not (
        len(g.user_rho) == 2
        and all(_is_number(w) and 0 <= w < math.inf for w in g.user_rho)
        and sum(g.user_rho) >= 1 - 1e-9
    ):
        raise ValueError(
            f"user_rho must be two numbers of at least 0 that price one rating at 1 or more, got {g.user_rho!r}"
        )
    if g.unit == "user" and g.user_rho is not None:
        raise ValueError("user_rho prices a user by ratings; where the unit is the user, epsilon is the price")
    _check_price(g)


def _check_price(guarantee: Guarantee) -> None:
    g = guarantee
    if g.status == "none":
        if not (g.epsilon == math.inf and g.rho is None and not g.accountants):
            raise ValueError("without a guarantee epsilon is infinite, and there is neither rho nor an accountant")
        return
    if g.rho is None:
        return
    if g.noise_multiplier is not None and not math.isclose(
        g.rho, gaussian.rho(g.noise_multiplier, g.steps), rel_tol=1e-9
    ):
        raise ValueError(f"rho {g.rho!r} is not that of {g.steps} steps at noise multiplier {g.noise_multiplier!r}")
    price = _price(g.status, g.rho, g.delta)
    if not g.epsilon * (1 + 1e-9) >= price:  # another machine's last digits may differ
        raise ValueError(f"epsilon {g.epsilon!r} is below {price!r}, the price of rho {g.rho!r} at delta {g.delta!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {name: _to_json(entry) for name, entry in value.items()}
    return "inf" if value == math.inf else value


def _from_json(name: str, value: Any) -> Any:
    if name == "accountants":
        return {key: _from_json("epsilon", entry) for key, entry in dict(value).items()}
    if isinstance(value, list):
        return tuple(value)
    return math.inf if name == "epsilon" and value == "inf" else value
