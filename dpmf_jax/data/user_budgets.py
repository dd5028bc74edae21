"""Budgets of one's own, from a file: an ε that a user declared. They follow from no rating."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from dpmf_jax.errors import DataError

HEADER = ["user", "epsilon"]
FIX = "give csv: a first line user,epsilon, then a user id and a positive number in every line"


def read(path: Path, ids: np.ndarray, *, others: float) -> Float64[np.ndarray, " users"]:
    """Everybody's ε, in the order of a catalogue.

    Args:
      path: csv with the columns user and epsilon.
      ids: of the catalogue.
      others: ε of users that are not in the file.

    Raises: DataError for a file that cannot be read or has no such columns, for a user who is
      not in the catalogue or is there twice, and for an ε that is not positive; it names the line.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            found, epsilons = _columns(rows, path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"the budgets of users cannot be read: {error}", where=str(path), fix=FIX
        ) from None
    place = {str(one): at for at, one in enumerate(np.asarray(ids).tolist())}
    values = np.full(len(place), others, np.float64)
    lines: dict[int, int] = {}
    for (line, user), epsilon in zip(found, epsilons, strict=True):
        where, at = f"{path}, line {line}", place.get(user)
        if at is None:
            raise DataError(
                f"user {user} is not in the catalogue",
                where=where,
                fix="leave out the line, or declare the user in --catalogue-users",
            )
        if at in lines:
            raise DataError(
                f"user {user} is there twice, first in line {lines[at]}",
                where=where,
                fix="give every user one line",
            )
        lines[at] = line
        values[at] = epsilon
    return values


def _columns(rows: Any, path: Path) -> tuple[list[tuple[int, str]], list[float]]:
    """((line, user), ...) and what each declared, of a csv.reader."""
    found, epsilons = [], []
    for number, row in enumerate(rows):
        line = rows.line_num
        cells, where = [cell.strip() for cell in row], f"{path}, line {line}"
        if number == 0:
            if [cell.lower() for cell in cells] != HEADER:
                raise DataError(
                    f"the first line names no columns user and epsilon: it is {','.join(row)!r}",
                    where=where,
                    fix=FIX,
                )
            continue
        if not any(cells):
            continue
        if len(cells) != 2:
            raise DataError(f"a line of {len(cells)} cells", where=where, fix=FIX)
        user, text = cells
        try:
            epsilon = float(text)
        except ValueError:
            epsilon = math.nan
        if not 0 < epsilon < math.inf:
            raise DataError(
                f"epsilon must be a positive number, got {text!r} for user {user}",
                where=where,
                fix=FIX,
            )
        found.append((line, user))
        epsilons.append(epsilon)
    if not found:
        raise DataError("the file has no budget of any user", where=str(path), fix=FIX)
    return found, epsilons
