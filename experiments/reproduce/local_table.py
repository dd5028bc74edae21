"""What of paper 004 can be reproduced, and the slides' numbers; NumPy and jax are not needed to ask."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from dpmf_jax.errors import UsageError

RANK, REGULARIZATION = 15, 1e-8
ROUNDS = (1, 3, 5, 10, 20, 50)  # where the slides have numbers
FIG9_EPSILON = 0.1
PAPER = {
    "private": dict(zip(ROUNDS, (2.960, 1.697, 1.500, 1.409, 1.381, 1.372), strict=True)),
    "non-private": dict(zip(ROUNDS, (1.269, 1.204, 1.187, 1.173, 1.161, 1.145), strict=True)),
}
PAPER_DATA, PAPER_ITEMS, PAPER_PROJECTED = "ml-20m", 26_744, 2_700
TOLERANCE = 0.05  # relative, where the ratings are the paper's
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
EPSILON_ROUNDS = 10  # of `004/epsilon`, whose k the slides do not say
VARIANTS_EPSILON, VARIANTS_ROUNDS, VARIANTS_PROJECTED = 1.6, 20, 512
SEEDS = (0, 1, 2)


class Figure(NamedTuple):
    """name: what the command calls it. what: is plotted. x_name, y_name: its axes. data: where it is run, if there.

    log: whether the axes are logarithmic, (x, y).
    """

    name: str
    what: str
    x_name: str
    y_name: str
    data: tuple[str, ...]
    log: tuple[bool, bool]
    minutes: float

    @property
    def stem(self) -> str:
        return self.name.replace("/", "-")


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            "004/fig9",
            "RMSE over rounds at ε = 0.1, private GD-DR and non-private GD",
            "rounds",
            "RMSE",
            ("ml-20m", "ml-1m", "ml-100k"),
            (True, True),
            6,
        ),
        Figure(
            "004/epsilon",
            f"RMSE over ε, {EPSILON_ROUNDS} rounds: GD, GD-DR, as planned, Laplace",
            "ε of a user",
            "RMSE",
            ("ml-1m", "ml-100k"),
            (True, True),
            12,
        ),
        Figure(
            "004/variants",
            f"what each variant changes, ε = {VARIANTS_EPSILON:g}, {VARIANTS_ROUNDS} rounds",
            "variant",
            "RMSE",
            ("ml-1m",),
            (False, True),
            6,
        ),
        Figure(
            "004/error",
            "‖V* − V‖max over users, items and q, against theorem 2",
            "users, items or q",
            "‖V* − V‖max",
            (),
            (True, True),
            2,
        ),
    )
}
GROUPS = {"004/all": tuple(FIGURES)}
CLAIMS = "004/claims"


def expand(names: Sequence[str]) -> list[Figure]:
    """The figures that are named, each once; 004/all stands for all of them.

    Raises: UsageError for one that is not known, with the nearest that is.
    """
    chosen = []
    for name in dict.fromkeys(one for asked in names for one in GROUPS.get(asked, (asked,))):
        if name not in FIGURES:
            nearest = difflib.get_close_matches(name, (*FIGURES, *GROUPS, CLAIMS), n=1, cutoff=0.0)
            raise UsageError(
                f"there is no figure {name!r} to reproduce",
                where="dpmf reproduce --list names them",
                fix=f"dpmf reproduce {nearest[0]}",
            )
        chosen.append(FIGURES[name])
    return chosen
