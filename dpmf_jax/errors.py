"""Errors that a user can act on: what happened, where, and what to do; each knows its exit code."""

from collections.abc import Generator
from contextlib import contextmanager


class DpmfError(Exception):
    """A failure with a remedy.

    Args:
      what: one line, what is wrong.
      where: one line, the file, row, field or step it was found at; empty if nowhere in particular.
      fix: one line, what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", fix: str = ""):
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"where: {self.where}")
        if self.fix:
            lines.append(f"fix: {self.fix}")
        return "\n".join(lines)


class UsageError(DpmfError):
    """A flag, a configuration or an argument that means nothing here."""


class DataError(DpmfError):
    """Ratings, or a saved model, that cannot be read as what they claim to be."""

    exit_code = 3


class PrivacyError(DpmfError):
    """A privacy or environment precondition that does not hold; nothing was trained or written."""

    exit_code = 4


class CannotWrite(DpmfError, OSError):
    """The operating system refused a write: a full disk, a quota, no permission.

    What was there before is as it was.

    Args:
      name: what could not be written.
      where: its path.
      error: what the system said.
    """

    exit_code = 4

    def __init__(self, name: str, *, where: str, error: OSError):
        reason = error.strerror or str(error)
        super().__init__(
            f"{name} cannot be written: {reason}",
            where=where,
            fix="free some space or write elsewhere (--out), then run it again",
        )
        self.errno, self.strerror, self.filename = error.errno, reason, where


class AuditViolated(DpmfError):
    """An audit found a claim to be false."""

    exit_code = 5


class OutsideTolerance(DpmfError):
    """A reproduction ended outside its stated tolerance."""

    exit_code = 6


@contextmanager
def usage_errors(where: str = "", fix: str = "") -> Generator[None, None, None]:
    """Turns a ValueError of the block, such as a Config's own guards raise, into a `UsageError`."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error), where=where, fix=fix) from error
