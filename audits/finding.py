"""What an audit says: a claim, what was measured against it, and a verdict that can be replayed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from accounting import guards

Verdict = Literal["consistent", "violated", "inconclusive", "not applicable"]

# False-alarm rate of one finding that rests on chance; with ten of them in an audit, 1e-3 in all.
ALPHA = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One audit's answer about one claim.

    Attributes:
      audit: its name, such as "sensitivity: largest step".
      claim: the claim as a sentence, with its numbers.
      verdict: "consistent": the audit failed to break the claim, and `details["power"]` says what
        it would have seen. "violated": the claim is false. "inconclusive": the audit cannot tell.
        "not applicable": there is no such claim.
      measured: in the units of `claimed`; None where nothing was measured.
      claimed: the number that `measured` is compared with, where there is one.
      lower, upper: an interval for what was measured, at `confidence`; None where that side is not
        known.
      confidence: of the interval; 1 where no chance is involved.
      details: what else a reader needs, above all `replay` (pair of data sets, step, key) and
        `why`.

    Raises:
      ValueError: a verdict that does not exist, an interval that does not hold the measurement, or
        a verdict that needs a measurement and has none.
    """

    audit: str
    claim: str
    verdict: Verdict
    measured: float | None = None
    claimed: float | None = None
    lower: float | None = None
    upper: float | None = None
    confidence: float = 1.0
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(
                f"verdict must be one of {', '.join(get_args(Verdict))}; got {self.verdict!r}"
            )
        if self.verdict in ("consistent", "violated") and self.measured is None:
            raise ValueError(f"a verdict of {self.verdict} needs a measurement")
        guards.rate("confidence", self.confidence)
        if self.measured is not None and not math.isnan(self.measured):
            low = -math.inf if self.lower is None else self.lower
            high = math.inf if self.upper is None else self.upper
            if not low <= self.measured <= high:
                raise ValueError(f"measured {self.measured} lies outside [{low}, {high}]")
        object.__setattr__(self, "details", dict(self.details))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: infinities and not-a-number as the strings "inf", "-inf" and "nan"."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def __str__(self) -> str:
        return f"{self.audit}: {self.verdict}; {self.claim}; measured {self.measured}"


def not_applicable(audit: str, claim: str, why: str) -> Finding:
    """The finding on a claim that is not made."""
    return Finding(audit=audit, claim=claim, verdict="not applicable", details={"why": why})


def inconclusive(audit: str, claim: str, why: str, **details: Any) -> Finding:
    """The finding of an audit that ran and cannot tell."""
    return Finding(
        audit=audit, claim=claim, verdict="inconclusive", details={"why": why, **details}
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):  # NumPy and jax
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value
