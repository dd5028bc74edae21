"""How far a guarantee is proved, in one of four words, and what the second one leaves open."""

from collections.abc import Iterable
from typing import Literal, get_args

Status = Literal["proved", "proved for real-number noise", "claimed", "none"]  # strongest first
REAL_NUMBERS: Literal["proved for real-number noise"] = "proved for real-number noise"

# What float32 noise leaves open, measured on 1,501 users with one rating each, in one step.
LEAVES_OPEN = (
    "ε is computed for noise that is a real number, but the program draws float32 numbers, and"
    " these can tell more than ε allows: in a test at ε = 0.1, 82% of the ratings were guessed"
    " right from the public files alone, where ε allows 52.5%"
)


def weakest(statuses: Iterable[Status]) -> Status:
    """The status of a whole whose parts have these statuses, of which there is at least one."""
    return max(statuses, key=get_args(Status).index)


def meaning(status: str, claimed_by: str | None = None) -> str:
    """What a status means, as statements and reports print it."""
    if status == "claimed":
        return (
            f"claimed by {claimed_by}, and NOT proved: it does not hold in general"
            if claimed_by
            else "claimed, and NOT proved"
        )
    return "nothing is claimed" if status == "none" else f"{status}, under the assumptions below"
