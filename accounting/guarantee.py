"""The claim that goes with a release: what is protected, from whom, at which price, how surely."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from accounting import guarantee_json, loss, price, statement
from accounting.loss import Approximate, Gaussian, Loss, Pure, Unit
from accounting.relation import NONE, Relation, common, of_sentence
from accounting.status import Status, weakest
from accounting.terms import SELECTION as SELECTION
from accounting.terms import Group as Group
from accounting.terms import Terms, stated_epsilon
from accounting.terms import UserPrice as UserPrice

NO_NOISE = "there is no noise between the ratings and what is released"

_DERIVED = (
    "rho",
    "noise_multiplier",
    "user_price",
    "leaves_open",
    "statement",
)  # in JSON for the reader, never read back


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee(Terms):
    """What a release promises; `Terms` has its fields.

    `priced`, `no_guarantee` and `compose` make guarantees.

    `str()` is the privacy statement, `to_dict()` goes to JSON, `from_dict` comes back and prices
    mixes again.
    """

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
            self,
            delta=float(delta),
            accountants={**kept, **prices},
            epsilon=stated_epsilon(self.status, prices),
            groups=_groups([(group.num_users, group.losses) for group in self.groups], delta),
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
        """The fields for JSON, and for the reader what follows from them; infinity is "inf".

        The relation is its sentence, `relation_kind` and `largest_change`.
        """
        fields = {
            field.name: guarantee_json.to_json(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }
        fields["losses"] = [loss.to_dict(phase) for phase in self.losses]
        fields["groups"] = [
            {
                "num_users": group.num_users,
                "epsilon": guarantee_json.to_json(group.epsilon),
                "losses": [loss.to_dict(phase) for phase in group.losses],
            }
            for group in self.groups
        ]
        fields["relation"] = str(self.relation)
        fields["relation_kind"] = self.relation.kind
        fields["largest_change"] = self.largest_change
        return {**fields, **{name: getattr(self, name) for name in _DERIVED}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guarantee":
        """The inverse of `to_dict`; what follows from the fields is made anew, never read.

        An older version called float32 noise proved. What it wrote is read as proved for
        real-number noise, unless it is a promise to a user by pure or shuffled reports, which are
        drawn exactly.

        Raises:
          ValueError: a key is unknown or missing, a value has the wrong type, or the values
            contradict each other.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a guarantee must be an object, got {type(values).__name__}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(
            set(values) - set(fields) - {"relation_kind", "largest_change"} - set(_DERIVED)
        ):
            raise ValueError(f"unknown keys in a guarantee: {', '.join(map(str, unknown))}")
        if missing := sorted(set(fields) - set(values) - guarantee_json.NEWER):
            raise ValueError(f"missing keys in a guarantee: {', '.join(missing)}")
        try:
            guarantee = cls(**guarantee_json.fields(values, fields))
        except (TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(f"a value of the wrong type in a guarantee: {error}") from error
        apart = [
            phase
            for phase in loss.merged(guarantee.losses)
            if not isinstance(phase, Approximate | Gaussian)
        ]
        if not apart or (len(apart) == len(guarantee.losses) == 1 and isinstance(apart[0], Pure)):
            return guarantee  # held to its losses already
        stated = stated_epsilon(
            guarantee.status,
            price.accountants(guarantee.losses, guarantee.delta, unit=guarantee.unit),
        )
        if not guarantee.epsilon * (1 + 1e-6) >= stated:
            raise ValueError(
                f"epsilon {guarantee.epsilon!r} is below {stated!r}, the price of its losses"
            )
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
    surplus_noise: float = 1.0,
    accountants: Mapping[str, float] | None = None,
    groups: Sequence[tuple[int, Sequence[Loss]]] = (),
) -> Guarantee:
    """The guarantee of a release that spends these losses.

    Args:
      losses: phases; the numbers that the noise itself reads, for the `relation`.
      delta: of the whole; 0 has a finite price for pure losses only.
      status: either "proved" makes `epsilon` the smallest price; "claimed" the paper's closed form
        where there is one, else the largest price. Both are rounded up at 4 decimals. Never "none",
        see `no_guarantee`.
      relation: one of `accounting.relation`'s, or a sentence of one's own.
      largest_change: of one rating's value, beside a sentence; a relation has its own.
      sensitivity: Δ, for the record; the price depends on the losses alone.
      against, real_number_noise, claimed_by, rounds_are_seen, surplus_noise: see `Guarantee`.
      accountants: numbers by name to print before the prices, such as the paper's own under
        "paper".
      groups: (number of users, Gaussian losses) of those who have a budget of their own, see
        `Group`.

    Returns:
      A guarantee with every accountant in `accountants`. The first call imports dp_accounting,
      about a second.

    Raises:
      ValueError: from `price.accountants` and `Guarantee`; noise is never 0, infinite or NaN.
    """
    if isinstance(relation, str):
        relation = of_sentence(relation, largest_change)
    elif largest_change not in (None, relation.largest_change):
        raise ValueError(
            f"largest_change {largest_change!r} is not that of the relation: {relation}"
        )
    prices = price.accountants(losses, delta, unit=unit)
    return Guarantee(
        mechanism=mechanism,
        epsilon=stated_epsilon(status, prices),
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
        surplus_noise=float(surplus_noise),
        groups=_groups(groups, delta),
    )


def _groups(groups: Sequence[tuple[int, Sequence[Loss]]], delta: float) -> tuple[Group, ...]:
    """Each group at its exact price, rounded up."""
    return tuple(
        Group(
            number,
            loss.merged(losses),
            stated_epsilon("proved", {"exact": price.exact(losses, delta)}),
        )
        for number, losses in groups
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
    """The guarantee of a path that promises nothing: ε is infinite, and its statement says why."""
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


def compose(*guarantees: Guarantee, same_groups: bool = False) -> Guarantee:
    """The guarantee of phases that run one after the other on the same ratings.

    Each phase may see what the earlier ones released.

    Losses add up; the status is the weakest, and decides which ε is stated; one phase without a
    guarantee leaves none. A claim is somebody's (`claimed_by`) where each one in it is. What is
    protected is what all of them protect, see `relation.common`, which says why.

    Args:
      same_groups: whether every user is in the same group in all phases, as those of one run are.
        Only then, and where all phases have groups, do budgets of one's own add up group by group.
        Else there are none: the total is that of the largest budgets, which holds for everybody.

    Raises:
      ValueError: no phase; phases that differ in unit, relation or delta (`at_delta` mends the
        last), it names them; (ε, δ) losses whose δ add up to more than the phases' δ.
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
            reason="; ".join(
                _union(phase.assumptions for phase in guarantees if phase.status == "none")
            ),
            seeded=seeded,
        )
    for name in ("unit", "delta"):
        if len(values := {getattr(phase, name) for phase in guarantees}) > 1:
            raise ValueError(f"phases differ in {name}: {'; '.join(sorted(map(str, values)))}")
    first = guarantees[0]
    claimants = tuple(
        dict.fromkeys(phase.claimed_by for phase in guarantees if phase.status == "claimed")
    )
    losses = loss.merged([part for phase in guarantees for part in phase.losses]) or first.losses
    groups: Sequence[tuple[int, Sequence[Loss]]] = ()
    sizes = {tuple(group.num_users for group in phase.groups) for phase in guarantees}
    if same_groups and len(sizes) == 1:
        groups = [
            (each[0].num_users, [part for group in each for part in group.losses])
            for each in zip(*(phase.groups for phase in guarantees), strict=True)
        ]
    return priced(
        mechanism=mechanism,
        losses=losses,
        delta=first.delta,
        unit=first.unit,
        relation=common([phase.relation for phase in guarantees]),
        released=released,
        trust_model=trust_model,
        status=status,
        sensitivity=(
            first.sensitivity
            if len(losses) == 1
            and _agree(guarantees, "sensitivity")
            and _agree(guarantees, "surplus_noise")
            else None
        ),
        assumptions=_union(phase.assumptions for phase in guarantees),
        not_covered=_union(phase.not_covered for phase in guarantees),
        against=_union(phase.against for phase in guarantees),
        seeded=seeded,
        real_number_noise=any(phase.real_number_noise for phase in guarantees),
        claimed_by=" and ".join(filter(None, claimants)) if all(claimants) and claimants else None,
        rounds_are_seen=any(phase.rounds_are_seen for phase in guarantees),
        surplus_noise=min(phase.surplus_noise for phase in guarantees),
        groups=groups,
    )


def _agree(guarantees: Sequence[Guarantee], name: str) -> bool:
    return len({getattr(guarantee, name) for guarantee in guarantees}) == 1


def _union(groups) -> tuple:
    return tuple(dict.fromkeys(entry for group in groups for entry in group))
