"""The claim that goes with a release: what is protected, from whom, at which price, and how far that is proved."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from accounting import gaussian, guarantee_json, loss, price, statement, user
from accounting.guards import is_line
from accounting.loss import Approximate, Gaussian, Loss, Pure, SubsampledGaussian, Unit
from accounting.relation import NONE, Relation, common, of_sentence
from accounting.statement import DIGITS
from accounting.status import LEAVES_OPEN, REAL_NUMBERS, Status, weakest

SELECTION = (
    "choosing the best of several runs, and hyperparameter search on the same ratings: "
    "the price is that of one run, set up without looking at them"
)


NO_NOISE = "there is no noise between the ratings and what is released"

ROUNDING = 1 + 1e-9  # another machine's last digits may differ

_DERIVED = (
    "rho",
    "noise_multiplier",
    "user_price",
    "leaves_open",
    "statement",
)  # in JSON for the reader, never read back


class UserPrice(NamedTuple):
    """What all ratings of one user cost together: (epsilon, the guarantee's delta), with the guarantee's status."""

    num_ratings: int
    rho: float | None  # of nothing but Gaussian steps
    epsilon: float
    status: Status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What a release promises: for neighbours by `relation`, P(S) <= exp(epsilon) P'(S) + delta for every event S.

    `str()` is the privacy statement, `to_dict()` goes to JSON. `priced`, `no_guarantee` and `compose` make these. Made
    by hand, an ε or an accountant below what the losses cost is refused as far as that is known in no time: below the
    exact price of the Gaussian losses, of the pure ones, the sum of the others. `from_dict` prices mixes again.

    Attributes:
      mechanism: its name.
      epsilon: rounded up at 4 decimals; inf where no finite ε holds, and always with status none.
      delta: in [0, 1). A total that reaches 1, as J·δ of basic composition does, says nothing and is refused.
      unit: whose change is hidden.
      relation: which data sets are neighbours; `str()` of it is a sentence.
      released: the names of what the world may see.
      trust_model: a sentence, who sees what.
      steps: of training, or rounds.
      status: "proved"; "proved for real-number noise": so is the price, and the noise is float32, see `leaves_open`;
        "claimed": somebody says so, and it is not proved; "none".
      losses: what is spent, phase by phase, the relation folded in; empty with status none.
      sensitivity: Δ, the L2 sensitivity of one step, in the units of σ; None where steps differ or none holds.
      accountants: ε by accountant, not rounded.
      assumptions: sentences, what the claim rests on.
      not_covered: sentences; `SELECTION` is always among them.
      against: (party, what holds against it) where the parties see different things; empty where there is one view.
      seeded: the noise can be replayed by whoever knows the seed, so nothing holds for the outside world.
      real_number_noise: the price is that of real numbers, and the noise is float32. It follows from the status where
        that is "proved for real-number noise", must be false where it is "proved", and is said of a claim.
      claimed_by: who claims it, such as "paper 001"; None where nobody but the mechanism does, or nothing is claimed.
      rounds_are_seen: somebody outside sees the response of every round as it is made, such as an untrusted server. A
        round that was run is then spent, also where its state is lost: `fitting.fit` never answers it again.

    Raises:
      ValueError: a field out of range, or fields that contradict each other.
    """

    mechanism: str
    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    released: tuple[str, ...]
    trust_model: str
    steps: int
    status: Status
    losses: tuple[Loss, ...] = ()
    sensitivity: float | None = None
    accountants: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    assumptions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    against: tuple[tuple[str, str], ...] = ()
    seeded: bool = False
    real_number_noise: bool = False
    claimed_by: str | None = None
    rounds_are_seen: bool = False

    def __post_init__(self):
        for name in ("losses", "released", "assumptions", "not_covered", "against"):
            if isinstance(value := getattr(self, name), str | Mapping):
                raise ValueError(f"{name} must be a sequence, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        if SELECTION not in self.not_covered:
            object.__setattr__(self, "not_covered", (*self.not_covered, SELECTION))
        object.__setattr__(self, "accountants", dict(self.accountants))
        if self.status == REAL_NUMBERS:
            object.__setattr__(self, "real_number_noise", True)
        _check(self)

    @property
    def largest_change(self) -> float | None:
        """Of one rating's value, that the price covers; None where it covers any, or none."""
        return self.relation.largest_change

    @property
    def rho(self) -> float | None:
        """ρ of the whole release where it is nothing but Gaussian steps; None otherwise."""
        return price.rho(self.losses)

    @property
    def noise_multiplier(self) -> float | None:
        """z of every step where all steps are alike; None otherwise."""
        if len(self.losses) == 1 and isinstance(only := self.losses[0], Gaussian | SubsampledGaussian):
            return only.noise_multiplier
        return None

    @property
    def noise_scale(self) -> float | None:
        """σ of every step, in the units of `sensitivity`: z·Δ, or half of that where z is σ over half of Δ.

        A changed value in a Poisson sample is −C against +C, so Δ = 2C, and its price is written in z = σ/C.
        """
        if self.noise_multiplier is None or self.sensitivity is None:
            return None
        halves = isinstance(self.losses[0], SubsampledGaussian) and self.unit == "rating value"
        return self.noise_multiplier * self.sensitivity / (2 if halves else 1)

    @property
    def user_price(self) -> str | None:
        """A sentence: what a user with m ratings pays; None where the unit is the user or no price is known."""
        if self.status == "none" or self.unit == "user":
            return None
        rule = user.rule(self.losses, self.delta, unit=self.unit)
        if rule is None:
            return None
        examples = ", ".join(f"m = {m}: ε = {statement.printed(self.for_user(m).epsilon)}" for m in rule[1])
        claim = " (a claim as well, not proved)" if self.status == "claimed" else ""
        return f"a user with m ratings pays {rule[0]}{claim}; {examples}"

    @property
    def leaves_open(self) -> str | None:
        """A sentence: what float32 noise leaves open; None where the noise is not float32, or nothing is promised."""
        return LEAVES_OPEN if self.real_number_noise else None

    def for_user(self, num_ratings: int) -> UserPrice:
        """The price of all m ratings of one user, by the same δ, relation and status as the guarantee.

        Raises:
          ValueError: m is not an integer of at least 1, or no such price is known.
        """
        unknown = f"{self.mechanism}: no price per user is known"
        if self.status == "none" or self.unit == "user" or not self.losses:
            raise ValueError(unknown)
        own = user.losses(self.losses, num_ratings)
        if own is not None:
            epsilon = _stated(self.status, price.accountants(own, self.delta, unit=self.unit))
            return UserPrice(num_ratings, price.rho(own), epsilon, self.status)
        epsilon = user.epsilon(self.losses, self.delta, num_ratings=num_ratings, unit=self.unit)
        if epsilon is None:
            raise ValueError(unknown)
        return UserPrice(num_ratings, None, gaussian.round_up(epsilon, DIGITS), self.status)

    def at_delta(self, delta: float) -> "Guarantee":
        """The same release, priced at another δ.

        Raises:
          ValueError: δ is out of range, or too small for the losses.
        """
        if self.status == "none" or delta == self.delta:
            return self
        prices = price.accountants(self.losses, delta, unit=self.unit)
        kept = {name: value for name, value in self.accountants.items() if name == "paper"}
        return dataclasses.replace(
            self, delta=float(delta), accountants={**kept, **prices}, epsilon=_stated(self.status, prices)
        )

    def dp_event(self):
        """The release as a dp_accounting `DpEvent`, see `price.event`; None where there is none."""
        import dp_accounting

        if self.status == "none":
            return dp_accounting.NonPrivateDpEvent()
        return price.event(self.losses, unit=self.unit)

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
        """For JSON: every field (infinity as the string "inf") and, for the reader, what follows from them.

        The relation is its sentence, `relation_kind` and `largest_change`.
        """
        fields = {field.name: guarantee_json.to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}
        fields["losses"] = [loss.to_dict(phase) for phase in self.losses]
        fields["relation"] = str(self.relation)
        fields["relation_kind"] = self.relation.kind
        fields["largest_change"] = self.largest_change
        return {**fields, **{name: getattr(self, name) for name in _DERIVED}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """The inverse of `to_dict`; what follows from the fields is made anew, never read.

        An older version called float32 noise proved. What it wrote is read as proved for real-number noise, unless it
        is a promise to a user by pure or shuffled reports, which are drawn exactly.

        Raises:
          ValueError: a key is unknown or missing, a value has the wrong type, or the values contradict each other.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a guarantee must be an object, got {type(values).__name__}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - set(fields) - {"relation_kind", "largest_change"} - set(_DERIVED)):
            raise ValueError(f"unknown keys in a guarantee: {', '.join(map(str, unknown))}")
        if missing := sorted(set(fields) - set(values) - guarantee_json.NEWER):
            raise ValueError(f"missing keys in a guarantee: {', '.join(missing)}")
        try:
            guarantee = cls(**guarantee_json.fields(values, fields))
        except (TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"a value of the wrong type in a guarantee: {error}") from error
        apart = [phase for phase in loss.merged(guarantee.losses) if not isinstance(phase, Approximate | Gaussian)]
        if not apart or (len(apart) == len(guarantee.losses) == 1 and isinstance(apart[0], Pure)):
            return guarantee  # held to its losses already
        stated = _stated(guarantee.status, price.accountants(guarantee.losses, guarantee.delta, unit=guarantee.unit))
        if not guarantee.epsilon * (1 + 1e-6) >= stated:
            raise ValueError(f"epsilon {guarantee.epsilon!r} is below {stated!r}, the price of its losses")
        return guarantee


def priced(
    *,
    mechanism: str,
    losses: Sequence[Loss],
    delta: float,
    unit: Unit,
    relation: Relation | str,
    released: tuple[str, ...],
    trust_model: str,
    status: Status,
    sensitivity: float | None = None,
    largest_change: float | None = None,
    assumptions: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
    against: tuple[tuple[str, str], ...] = (),
    seeded: bool = False,
    real_number_noise: bool = False,
    claimed_by: str | None = None,
    rounds_are_seen: bool = False,
    accountants: Mapping[str, float] | None = None,
) -> Guarantee:
    """The guarantee of a release that spends these losses.

    Args:
      losses: phases; the numbers that the noise itself reads, for the `relation`.
      delta: of the whole; 0 has a finite price for pure losses only.
      status: either "proved" makes `epsilon` the smallest price; "claimed" the paper's closed form where there is one,
        else the largest price. Both are rounded up at 4 decimals. Never "none", see `no_guarantee`.
      relation: one of `accounting.relation`'s, or a sentence of one's own.
      largest_change: of one rating's value, beside a sentence; a relation has its own.
      sensitivity: Δ, for the record; the price depends on the losses alone.
      against, real_number_noise, claimed_by, rounds_are_seen: see `Guarantee`.
      accountants: numbers by name to print before the prices, such as the paper's own under "paper".

    Returns:
      A guarantee with every accountant in `accountants`. The first call imports dp_accounting, about a second.

    Raises:
      ValueError: from `price.accountants` and `Guarantee`; noise is never 0, infinite or NaN.
    """
    if isinstance(relation, str):
        relation = of_sentence(relation, largest_change)
    elif largest_change not in (None, relation.largest_change):
        raise ValueError(f"largest_change {largest_change!r} is not that of the relation: {relation}")
    prices = price.accountants(losses, delta, unit=unit)
    return Guarantee(
        mechanism=mechanism,
        epsilon=_stated(status, prices),
        delta=float(delta),
        unit=unit,
        relation=relation,
        released=released,
        trust_model=trust_model,
        steps=loss.num_steps(losses),
        status=status,
        losses=tuple(losses),
        sensitivity=None if sensitivity is None else float(sensitivity),
        accountants={**(accountants or {}), **prices},
        assumptions=assumptions,
        not_covered=not_covered,
        against=against,
        seeded=seeded,
        real_number_noise=real_number_noise,
        claimed_by=claimed_by,
        rounds_are_seen=rounds_are_seen,
    )


def no_guarantee(
    *,
    mechanism: str,
    num_steps: int,
    released: tuple[str, ...],
    trust_model: str = "none: whoever sees what is released may learn any rating",
    unit: Unit = "rating value",
    reason: str = NO_NOISE,
    seeded: bool = False,
) -> Guarantee:
    """What a path without a guarantee promises: nothing. Its ε is infinite, and its statement says so and why."""
    return Guarantee(
        mechanism=mechanism,
        epsilon=math.inf,
        delta=0.0,
        unit=unit,
        relation=NONE,
        released=released,
        trust_model=trust_model,
        steps=num_steps,
        status="none",
        assumptions=(reason,),
        not_covered=("everything",),
        seeded=seeded,
    )


def compose(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of phases that run one after the other on the same ratings, each seeing what the earlier released.

    Losses add up; the status is the weakest, and decides which ε is stated; one phase without a guarantee leaves none.
    A claim is somebody's (`claimed_by`) where each one in it is. What is protected is what all of them protect, see
    `relation.common`, which says why.

    Raises:
      ValueError: no phase; phases that differ in unit, relation or delta (`at_delta` mends the last), it names them;
        (ε, δ) losses whose δ add up to more than the phases' δ.
    """
    if not guarantees:
        raise ValueError("nothing to compose")
    if len(guarantees) == 1:
        return guarantees[0]
    mechanism = " + ".join(phase.mechanism for phase in guarantees)
    released = _union(phase.released for phase in guarantees)
    trust_model = "; ".join(_union((phase.trust_model,) for phase in guarantees))
    seeded = any(phase.seeded for phase in guarantees)
    status = weakest(phase.status for phase in guarantees)
    if status == "none":
        return no_guarantee(
            mechanism=mechanism,
            num_steps=sum(phase.steps for phase in guarantees),
            released=released,
            trust_model=trust_model,
            reason="; ".join(_union(phase.assumptions for phase in guarantees if phase.status == "none")),
            seeded=seeded,
        )
    for name in ("unit", "delta"):
        if len(values := {getattr(phase, name) for phase in guarantees}) > 1:
            raise ValueError(f"phases differ in {name}: {'; '.join(sorted(map(str, values)))}")
    first = guarantees[0]
    claimants = tuple(dict.fromkeys(phase.claimed_by for phase in guarantees if phase.status == "claimed"))
    losses = loss.merged([part for phase in guarantees for part in phase.losses]) or first.losses
    return priced(
        mechanism=mechanism,
        losses=losses,
        delta=first.delta,
        unit=first.unit,
        relation=common([phase.relation for phase in guarantees]),
        released=released,
        trust_model=trust_model,
        status=status,
        sensitivity=first.sensitivity if len(losses) == 1 and _agree(guarantees, "sensitivity") else None,
        assumptions=_union(phase.assumptions for phase in guarantees),
        not_covered=_union(phase.not_covered for phase in guarantees),
        against=_union(phase.against for phase in guarantees),
        seeded=seeded,
        real_number_noise=any(phase.real_number_noise for phase in guarantees),
        claimed_by=" and ".join(filter(None, claimants)) if all(claimants) and claimants else None,
        rounds_are_seen=any(phase.rounds_are_seen for phase in guarantees),
    )


def _agree(guarantees: Sequence[Guarantee], name: str) -> bool:
    return len({getattr(guarantee, name) for guarantee in guarantees}) == 1


def _stated(status: Status, prices: Mapping[str, float]) -> float:
    if status == "claimed":
        return gaussian.round_up(prices.get("closed_form", max(prices.values())), DIGITS)
    return gaussian.round_up(min(prices.values()), DIGITS)


def _union(groups) -> tuple:
    return tuple(dict.fromkeys(entry for group in groups for entry in group))


def _check(guarantee: Guarantee) -> None:
    g = guarantee
    for name in ("mechanism", "trust_model"):
        if not is_line(value := getattr(g, name)):
            raise ValueError(f"{name} must be one line of text, got {value!r}")
    for name in ("released", "assumptions", "not_covered"):
        if not all(map(is_line, getattr(g, name))):
            raise ValueError(f"{name} must be lines of text, got {getattr(g, name)!r}")
    if not all(isinstance(row, tuple) and len(row) == 2 and all(map(is_line, row)) for row in g.against):
        raise ValueError(f"against must be pairs (party, what holds), each a line of text, got {g.against!r}")
    for name, allowed in (("unit", get_args(Unit)), ("status", get_args(Status))):
        if getattr(g, name) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(g, name)!r}")
    if g.relation.unit not in (None, g.unit):
        raise ValueError(f"unit {g.unit!r} is not that of the relation: {g.relation}")
    for name in ("seeded", "real_number_noise", "rounds_are_seen"):
        if not isinstance(getattr(g, name), bool):
            raise ValueError(f"{name} must be true or false, got {getattr(g, name)!r}")
    if g.real_number_noise and g.status in ("proved", "none"):
        raise ValueError(f"status {g.status!r} is not that of real-number noise")
    if g.claimed_by is not None and not (g.status == "claimed" and is_line(g.claimed_by)):
        raise ValueError(f"claimed_by must be one line of text, of a claim, got {g.claimed_by!r}")
    if isinstance(g.steps, bool) or not isinstance(g.steps, int) or g.steps < 0:
        raise ValueError(f"steps must be an integer of at least 0, got {g.steps!r}")
    if not (_is_number(g.epsilon) and g.epsilon >= 0):
        raise ValueError(f"epsilon must be at least 0, got {g.epsilon!r}")
    if not (_is_number(g.delta) and 0 <= g.delta < 1):
        raise ValueError(f"delta must be at least 0 and below 1, where it would say nothing, got {g.delta!r}")
    if not all(isinstance(name, str) and _is_number(value) and value >= 0 for name, value in g.accountants.items()):
        raise ValueError(f"accountants must be numbers of at least 0 by name, got {g.accountants!r}")
    if g.sensitivity is not None and not (_is_number(g.sensitivity) and 0 < g.sensitivity < math.inf):
        raise ValueError(f"sensitivity must be positive and finite, got {g.sensitivity!r}")
    if not all(isinstance(phase, Loss) for phase in g.losses):
        raise ValueError(f"losses must be those of accounting.loss, got {g.losses!r}")
    if g.losses and g.steps != loss.num_steps(g.losses):
        raise ValueError(f"steps must be those of the losses, {loss.num_steps(g.losses)}, got {g.steps!r}")
    if g.unit == "user" and any(getattr(phase, "user_rho", None) is not None for phase in g.losses):
        raise ValueError("user_rho prices a user by ratings; where the unit is the user, epsilon is the price")
    _check_price(g)
    if (g.relation == NONE) != (g.status == "none"):
        raise ValueError(f"status {g.status!r} is not that of the relation: {g.relation}")


def _check_price(guarantee: Guarantee) -> None:
    g = guarantee
    if g.status == "none":
        if not (g.epsilon == math.inf and not g.losses and not g.accountants):
            raise ValueError("without a guarantee epsilon is infinite, and there is neither a loss nor an accountant")
        return
    if not g.losses:
        raise ValueError("the losses must be given: without them nothing supports epsilon")
    floor = price.floor(g.losses, g.delta)
    prices = {name: value for name, value in g.accountants.items() if name != "paper"}
    wrong = [f"{name} {value!r}" for name, value in prices.items() if not value * ROUNDING + 1e-9 >= floor]
    if not g.epsilon * ROUNDING >= (_claim(g) if g.status == "claimed" else floor):
        wrong.append(f"epsilon {g.epsilon!r}")
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: below the price of the losses at delta {g.delta!r}")


def _claim(g: Guarantee) -> float:
    """The price that a claim is stated at, where it takes no accountant of dp_accounting."""
    if g.rho is not None and g.delta > 0:
        return gaussian.epsilon_closed_form(g.rho, g.delta)
    if all(isinstance(phase, Pure) for phase in g.losses):
        return loss.total(phase.epsilon for phase in g.losses if isinstance(phase, Pure))
    return price.floor(g.losses, g.delta)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 2**1023  # a larger integer is no float
