"""Which data sets are neighbours: a kind and a number, a sentence for each, and what adds up.

The kinds, the unit that each belongs to, and which data sets are neighbours:

| kind                    | unit            | neighbours                                          |
|-------------------------|-----------------|-----------------------------------------------------|
| "value"                 | rating value    | one rating differs, by at most `largest_change`     |
| "presence"              | rating presence | one rating more or less, whichever it is            |
| "user replaced"         | user            | all data of one user differ, who takes part in both |
| "user added or removed" | user            | one user with all data more or less                 |
| "stated"                | any             | as a sentence says that is not ours                 |
| "none"                  | any             | no two: nothing is hidden                           |

Of "value" both have the same rated pairs.

`common` says what adds up. It makes no use of what one kind implies of another, since unit or price
change:

- A price for a user replaced is one for a value, and for the presence of a rating of a user who
  takes part: each is a change to all data of one user.
- A price (ε, δ) for a user added or removed is one of (2ε, (1 + e^ε)δ), or 4ρ for Gaussian steps,
  for a user replaced: one step removes the user, a second adds the user with other data. It is none
  at ε itself: a message clipped to norm C moves by C where it is removed, and by 2C where its
  opposite replaces it. In the same way a price for presence is one for a value at twice ε.
- A price for a user replaced is none for a user removed, at any ε: a release of who takes part
  costs nothing by the first, and shows all of the second. In the same way a price for a value says
  nothing of presence.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal, get_args

from accounting import guards
from accounting.digits import printed_whole
from accounting.loss import Unit

Kind = Literal["value", "presence", "user replaced", "user added or removed", "stated", "none"]

_UNITS: dict[str, Unit] = {
    "value": "rating value",
    "presence": "rating presence",
    "user replaced": "user",
    "user added or removed": "user",
}
_VALUE = "two data sets with the same rated pairs, one rating's value differs"
_SENTENCES = {
    "presence": (
        "two data sets, one of which has one rating more than the other, of any user and item, with"
        " any value"
    ),
    "user replaced": (
        "any change to all of one user's ratings, and to which items were rated; taking part is not"
        " hidden"
    ),
    "user added or removed": (
        "two data sets, one of which has all data of one user and the other has none of that user"
    ),
    "none": "none: no two data sets are hidden from each other",
}


@dataclasses.dataclass(frozen=True)
class Relation:
    """Which data sets are neighbours; `str()` is the sentence.

    Attributes:
      kind: see above.
      largest_change: of one rating's value, that the price covers; None where it covers any, or
        values are not what changes.
      stated: the sentence of the kind "stated", else None.

    Raises:
      ValueError: a field out of range, or fields that contradict each other.
    """

    kind: Kind
    largest_change: float | None = None
    stated: str | None = None

    def __post_init__(self):
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"the kind of a relation must be one of {', '.join(get_args(Kind))}, got"
                f" {self.kind!r}"
            )
        if self.largest_change is not None:
            if self.kind not in ("value", "stated"):
                raise ValueError(
                    f"largest_change is of a value, not of {self.kind}, got {self.largest_change!r}"
                )
            object.__setattr__(
                self, "largest_change", guards.positive("largest_change", self.largest_change)
            )
        if (self.kind == "stated") != (self.stated is not None):
            raise ValueError(
                f"a sentence belongs to the kind stated, and to no other, got {self.stated!r}"
            )
        if self.stated is not None:
            guards.line("relation", self.stated)

    def __str__(self) -> str:
        if self.stated is not None:
            return self.stated
        if self.kind != "value":
            return _SENTENCES[self.kind]
        by = (
            "any amount"
            if self.largest_change is None
            else f"at most {printed_whole(self.largest_change)}"
        )
        return f"{_VALUE}, by {by}"

    @property
    def unit(self) -> Unit | None:
        """The unit of what changes; None where the kind leaves it open."""
        return _UNITS.get(self.kind)

    @property
    def kin(self) -> tuple[Kind, str | None]:
        """Equal for relations that add up (`common`)."""
        return self.kind, self.stated


def value(largest_change: float | None = None) -> Relation:
    """One rating's value changes, by that at most; None: by any amount."""
    return Relation("value", largest_change)


def stated(sentence: str, largest_change: float | None = None) -> Relation:
    """A relation that only its sentence describes: it adds up with none but itself."""
    return Relation("stated", largest_change, sentence)


PRESENCE = Relation("presence")
USER_REPLACED = Relation("user replaced")
USER_ADDED_OR_REMOVED = Relation("user added or removed")
NONE = Relation("none")

# How older versions worded what is no longer worded so.
_OLDER = {
    "two data sets, one of which has one rating more than the other": PRESENCE,
    "one rating is added or removed, by any user, of any item, with any value": PRESENCE,
    _VALUE: value(),
    "one rating has another value, any other; who rated what is the same": value(),
    "any change to all of one user's ratings": USER_REPLACED,
    "two data sets that differ in all data of one user, who takes part in the same iterations": (
        USER_REPLACED
    ),
    "one user with all ratings is added or removed": USER_ADDED_OR_REMOVED,
}
_KNOWN = {
    str(one): one for one in (value(), PRESENCE, USER_REPLACED, USER_ADDED_OR_REMOVED, NONE)
} | _OLDER


def of_sentence(sentence: str, largest_change: float | None = None) -> Relation:
    """The relation that a sentence describes; "stated" where it is none of ours.

    Sentences of older versions count as ours.

    Raises:
      ValueError: not one line of text; a largest change that is not what the sentence says.
    """
    found = _KNOWN.get(sentence)
    bounded = re.fullmatch(re.escape(_VALUE) + r", by at most ([0-9.e+-]+)", sentence)
    if bounded:
        found = value(guards.positive("largest_change", float(bounded[1])))
    if found is None:
        return stated(sentence, largest_change)
    if largest_change is not None and largest_change != found.largest_change:
        raise ValueError(
            f"largest_change {largest_change!r} is not that of the relation: {sentence}"
        )
    return found


def common(relations: Sequence[Relation]) -> Relation:
    """What releases protect together: the pairs that are neighbours by the relation of each.

    Composition is a statement about one pair of data sets. Where each release, given the earlier
    ones, is private for that pair at its price, all of them are so at the composed price. Prices
    therefore add up for the pairs that are neighbours by each relation.

    Of one kind these pairs are again a relation. Values that differ by at most a and by at most b
    (None: any) differ by at most min(a, b), and every such pair is a neighbour by both. The other
    kinds have no number, and stay what they are. Relations of different kinds have no pair in
    common, or pairs of another unit. They are refused, and so are sentences that differ.

    Raises:
      ValueError: relations that do not add up, or none at all; it names them.
    """
    if len({relation.kin for relation in relations}) != 1:
        raise ValueError(
            f"phases differ in relation: {'; '.join(sorted(set(map(str, relations))))}"
        )
    least = min(
        (r.largest_change for r in relations if r.largest_change is not None), default=math.inf
    )
    return dataclasses.replace(relations[0], largest_change=None if least == math.inf else least)
