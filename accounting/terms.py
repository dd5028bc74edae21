"""The fields of a guarantee, held to each other and to the price of its losses."""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple, get_args

from accounting import digits, gaussian, guards, loss, price, user
from accounting.loss import BestOf, Gaussian, Loss, Pure, SubsampledGaussian, Unit
from accounting.relation import NONE, Relation
from accounting.status import LEAVES_OPEN, REAL_NUMBERS, Status

SELECTION = (
    "choosing the best of several runs, and hyperparameter search on the same ratings: "
    "the price is that of one run, set up without looking at them"
)
# Where the choice among several runs is priced.
OTHER_CHOICES = (
    "any other choice by the same ratings, such as of the settings that were tried, and how long it"
    " took: the number of runs is secret"
)

ROUNDING = 1 + 1e-9  # another machine's last digits may differ


class UserPrice(NamedTuple):
    """What all ratings of one user cost together, at the guarantee's δ and with its status."""

    num_ratings: int
    rho: float | None  # of nothing but Gaussian steps
    epsilon: float
    status: Status


class Group(NamedTuple):
    """Users who declared one budget of their own.

    num_users: how many users were declared to have it, whether they take part or not.
    losses: Gaussian, what the release spends of one of them, the relation folded in.
    epsilon: of one of them, at the guarantee's δ; rounded up at 4 decimals.
    """

    num_users: int
    losses: tuple[Loss, ...]
    epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """What a release promises: P(S) <= exp(epsilon) P'(S) + delta for neighbours and every event S.

    `relation` says which data sets are neighbours.

    Raises ValueError for an ε or an accountant below the exact price, where that price is cheap to
    compute.

    Neighbours are two data sets by `relation`.

    Attributes:
      mechanism: its name.
      epsilon: rounded up at 4 decimals; inf where no finite ε holds, and always with status none.
      delta: in [0, 1). A total that reaches 1, as J·δ of basic composition does, says nothing and
        is refused.
      unit: whose change is hidden.
      relation: which data sets are neighbours; `str()` of it is a sentence.
      released: the names of what the world may see.
      trust_model: a sentence, who sees what.
      steps: of training, or rounds.
      status: "proved"; "proved for real-number noise": the price is that of real numbers, and the
        noise is float32, see `leaves_open`; "claimed": somebody says so, and it is not proved;
        "none".
      losses: what is spent, phase by phase, the relation folded in; empty with status none.
      sensitivity: Δ, the L2 sensitivity of one step, in the units of σ; None where steps differ or
        none holds.
      accountants: ε by accountant, not rounded.
      assumptions: sentences, what the claim rests on.
      not_covered: sentences; `SELECTION` is always among them, or `OTHER_CHOICES` where the choice
        among several runs is priced.
      against: (party, what holds against it) where the parties see different things; empty where
        there is one view.
      seeded: whoever knows the seed can replay the noise, so nothing holds for the outside world.
      real_number_noise: the price is that of real numbers, and the noise is float32. True for the
        status "proved for real-number noise", false for "proved"; a claim says which.
      claimed_by: who claims it, such as "paper 001"; None where only the mechanism does, or nothing
        is claimed.
      rounds_are_seen: somebody outside, such as an untrusted server, sees the response of every
        round as it is made. A round that ran is then spent, even where its state is lost:
        `training.fit` never answers it again.
      surplus_noise: the scale of the noise in a response over the one that is priced, at least 1:
        more where many add to the noise, and only some of them are relied on.
      groups: of users with budgets of their own, every user in one; empty where all have the same.
        `epsilon` and `losses` hold for everybody, so they are those of the largest budget.

    Raises:
      ValueError: a field out of range, or fields that contradict each other; an ε or an accountant
        below the exact price of the losses, where that price is cheap to compute.
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
    surplus_noise: float = 1.0
    groups: tuple[Group, ...] = ()

    def __post_init__(self):
        for name in ("losses", "released", "assumptions", "not_covered", "against", "groups"):
            if isinstance(value := getattr(self, name), str | Mapping):
                raise ValueError(f"{name} must be a sequence, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        chosen = any(isinstance(phase, BestOf) for phase in self.losses)
        always = OTHER_CHOICES if chosen else SELECTION
        if always not in self.not_covered:
            object.__setattr__(self, "not_covered", (*self.not_covered, always))
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
        if len(self.losses) == 1 and isinstance(
            only := self.losses[0], Gaussian | SubsampledGaussian
        ):
            return only.noise_multiplier
        return None

    @property
    def noise_scale(self) -> float | None:
        """σ of every step, in the units of `sensitivity`: z·Δ, or z·Δ/2 where Δ is twice the clip.

        With `surplus_noise`: what is drawn. A changed value in a Poisson sample is −C against +C: Δ
        is 2C there, and z is σ/C.
        """
        if self.noise_multiplier is None or self.sensitivity is None:
            return None
        halves = isinstance(self.losses[0], SubsampledGaussian) and self.unit == "rating value"
        drawn = self.noise_multiplier * self.surplus_noise
        return drawn * self.sensitivity / (2 if halves else 1)

    @property
    def user_price(self) -> str | None:
        """A sentence, what a user with m ratings pays.

        None where the unit is the user, or no price is known.
        """
        if self.status == "none" or self.unit == "user":
            return None
        rule = user.rule(self.losses, self.delta, unit=self.unit)
        if rule is None:
            return None
        examples = ", ".join(
            f"m = {m}: ε = {digits.printed(self.for_user(m).epsilon)}" for m in rule[1]
        )
        claim = " (a claim as well, not proved)" if self.status == "claimed" else ""
        return f"a user with m ratings pays {rule[0]}{claim}; {examples}"

    @property
    def leaves_open(self) -> str | None:
        """A sentence, what float32 noise leaves open; None where the noise is not float32."""
        return LEAVES_OPEN if self.real_number_noise else None

    def for_user(self, num_ratings: int) -> UserPrice:
        """The price of all m ratings of one user, by the δ, relation and status of the guarantee.

        Raises:
          ValueError: m is not an integer of at least 1, or no such price is known.
        """
        unknown = f"{self.mechanism}: no price per user is known"
        if self.status == "none" or self.unit == "user" or not self.losses:
            raise ValueError(unknown)
        own = user.losses(self.losses, num_ratings)
        if own is not None:
            epsilon = stated_epsilon(
                self.status, price.accountants(own, self.delta, unit=self.unit)
            )
            return UserPrice(num_ratings, price.rho(own), epsilon, self.status)
        epsilon = user.epsilon(self.losses, self.delta, num_ratings=num_ratings, unit=self.unit)
        if epsilon is None:
            raise ValueError(unknown)
        return UserPrice(num_ratings, None, digits.round_up(epsilon, digits.DIGITS), self.status)


def stated_epsilon(status: Status, prices: Mapping[str, float]) -> float:
    """The ε that is stated, rounded up: the smallest price.

    For a claim it is the paper's closed form, or the largest price where there is none.
    """
    if status == "claimed":
        return digits.round_up(prices.get("closed_form", max(prices.values())), digits.DIGITS)
    return digits.round_up(min(prices.values()), digits.DIGITS)


def _check(g: Terms) -> None:
    guards.fields(g, guards.line, "mechanism", "trust_model")
    for name in ("released", "assumptions", "not_covered"):
        if not all(map(guards.is_line, getattr(g, name))):
            raise ValueError(f"{name} must be lines of text, got {getattr(g, name)!r}")
    if not all(
        isinstance(row, tuple) and len(row) == 2 and all(map(guards.is_line, row))
        for row in g.against
    ):
        raise ValueError(
            f"against must be pairs (party, what holds), each a line of text, got {g.against!r}"
        )
    for name, allowed in (("unit", get_args(Unit)), ("status", get_args(Status))):
        if getattr(g, name) not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(allowed)}, got {getattr(g, name)!r}"
            )
    if g.relation.unit not in (None, g.unit):
        raise ValueError(f"unit {g.unit!r} is not that of the relation: {g.relation}")
    for name in ("seeded", "real_number_noise", "rounds_are_seen"):
        if not isinstance(getattr(g, name), bool):
            raise ValueError(f"{name} must be true or false, got {getattr(g, name)!r}")
    if g.real_number_noise and g.status in ("proved", "none"):
        raise ValueError(f"status {g.status!r} is not that of real-number noise")
    if g.claimed_by is not None and not (g.status == "claimed" and guards.is_line(g.claimed_by)):
        raise ValueError(f"claimed_by must be one line of text, of a claim, got {g.claimed_by!r}")
    guards.count("steps", g.steps, 0)
    guards.from_zero("epsilon", g.epsilon)
    guards.delta("delta", g.delta)
    guards.fields(g, guards.positive, optional=("sensitivity",))
    if not guards.positive("surplus_noise", g.surplus_noise) >= 1:
        raise ValueError(f"surplus_noise must be at least 1, got {g.surplus_noise!r}")
    for name, value in g.accountants.items():
        guards.from_zero(f"accountants: {guards.line('a name', name)}", value)
    if not all(isinstance(phase, Loss) for phase in g.losses):
        raise ValueError(f"losses must be those of accounting.loss, got {g.losses!r}")
    if g.losses and g.steps != loss.num_steps(g.losses):
        raise ValueError(
            f"steps must be those of the losses, {loss.num_steps(g.losses)}, got {g.steps!r}"
        )
    if g.unit == "user" and any(getattr(phase, "user_rho", None) is not None for phase in g.losses):
        raise ValueError(
            "user_rho prices a user by ratings; where the unit is the user, epsilon is the price"
        )
    _check_price(g)
    for group in g.groups:
        _check_group(g, group)
    if (g.relation == NONE) != (g.status == "none"):
        raise ValueError(f"status {g.status!r} is not that of the relation: {g.relation}")


def _check_price(g: Terms) -> None:
    if g.status == "none":
        if not (g.epsilon == math.inf and not g.losses and not g.accountants):
            raise ValueError(
                "without a guarantee epsilon is infinite, and there is neither a loss nor an"
                " accountant"
            )
        return
    if not g.losses:
        raise ValueError("the losses must be given: without them nothing supports epsilon")
    floor = price.floor(g.losses, g.delta)
    prices = {name: value for name, value in g.accountants.items() if name != "paper"}
    wrong = [
        f"{name} {value!r}"
        for name, value in prices.items()
        if not value * ROUNDING + 1e-9 >= floor
    ]
    if not g.epsilon * ROUNDING >= (_claim(g) if g.status == "claimed" else floor):
        wrong.append(f"epsilon {g.epsilon!r}")
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: below the price of the losses at delta {g.delta!r}")


def _check_group(g: Terms, group: Group) -> None:
    if not (g.unit == "user" and g.status == "proved"):
        raise ValueError("groups have budgets of their own in a proved promise to a user alone")
    guards.count("the users of a group", group.num_users, 1)
    guards.from_zero("epsilon of a group", group.epsilon)
    if not (group.losses and all(isinstance(phase, Gaussian) for phase in group.losses)):
        raise ValueError(f"the losses of a group must be Gaussian steps, got {group.losses!r}")
    if loss.num_steps(group.losses) != g.steps:
        raise ValueError(f"a group is in all {g.steps} steps, got {loss.num_steps(group.losses)}")
    if not price.floor(group.losses, g.delta) <= group.epsilon * ROUNDING <= g.epsilon * ROUNDING:
        raise ValueError(
            f"epsilon {group.epsilon!r} of a group is below the price of its losses, or above"
            f" {g.epsilon!r}, which holds for everybody"
        )


def _claim(g: Terms) -> float:
    """The price that a claim is stated at, where it takes no accountant of dp_accounting."""
    if g.rho is not None and g.delta > 0:
        return gaussian.epsilon_closed_form(g.rho, g.delta)
    if all(isinstance(phase, Pure) for phase in g.losses):
        return loss.total(phase.epsilon for phase in g.losses if isinstance(phase, Pure))
    return price.floor(g.losses, g.delta)
