"""Words and numbers that the report, its views and the terminal share."""

from collections.abc import Mapping, Sequence
from typing import Any


def prefix(finding: Mapping[str, Any]) -> str:
    """The family in a finding's own name, such as "sensitivity" of "sensitivity: largest step"."""
    return finding["audit"].partition(":")[0]


def number(value: Any) -> str:
    """A measured number in five digits; "-" where there is none."""
    return (
        "-" if value is None else f"{value:.5g}" if isinstance(value, int | float) else str(value)
    )


HIDDEN = {
    "rating value": "what one rating is",
    "rating presence": "whether one rating is there, and what it is",
    "user": "what one user's ratings are",
}


def in_a_sentence(told: Mapping[str, Any]) -> str:
    """What the audits of a document came to, for a reader who knows none of them."""
    if len(told["trials"]) > 1:
        return _of_several([trial["verdict"] for trial in told["trials"]])
    (trial,) = told["trials"]
    ran = [one for one in told["findings"] if one["verdict"] != "not applicable"]
    broken = sum(one["verdict"] == "violated" for one in ran)
    guarantee, audits = trial["guarantee"], f"{len(ran)} audit{'s' * (len(ran) != 1)}"
    if trial["verdict"] == "violated":
        return f"The claim does not hold: {broken} of {audits} found more than it allows."
    if guarantee["status"] == "none":
        return "Nothing is promised, so there is no claim to break."
    hidden, most = HIDDEN[guarantee["unit"]], number(guarantee["epsilon"])
    if trial["verdict"] == "consistent":
        return (
            f"No audit (of {len(ran)}) found that the release tells more about {hidden} than"
            f" ε = {most} allows."
        )
    return (
        f"Whether the release tells no more about {hidden} than ε = {most} allows"
        f" {'cannot be said by what ran' if ran else 'was not tried'}: {audits}."
    )


def _of_several(verdicts: Sequence[str]) -> str:
    words = (
        ("violated", "found false"),
        ("consistent", "not broken"),
        ("inconclusive", "left open"),
        ("not applicable", "that promise nothing"),
    )
    counts = [(verdicts.count(verdict), what) for verdict, what in words]
    return f"Of {len(verdicts)} claims: {', '.join(f'{n} {what}' for n, what in counts if n)}."
