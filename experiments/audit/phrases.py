"""Words and numbers that the report, its views and the terminal share."""

from collections.abc import Mapping
from typing import Any


def prefix(finding: Mapping[str, Any]) -> str:
    """The family in a finding's own name, such as "sensitivity" of "sensitivity: largest step"."""
    return finding["audit"].partition(":")[0]


def number(value: Any) -> str:
    """A measured number in five digits; "-" where there is none."""
    return (
        "-" if value is None else f"{value:.5g}" if isinstance(value, int | float) else str(value)
    )
