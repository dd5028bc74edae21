"""What of paper 002 can be reproduced, with which settings, and how many runs that is; neither
NumPy nor jax is needed.

The paper's figures are not digitised: the numbers of its text are in `TEXT`, and columns for a
paper's value are empty. EachMovie, on which its figure 1 is drawn, was withdrawn by its publisher
in 2004: MovieLens-1M stands in.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from experiments.reproduce.catalogue import Catalogue, Figure
from experiments.reproduce.paper import Scale

Storage = Literal["regular", "hashed", "sketched"]

MOVIELENS, BUDGET_DATA = "ml-1m", "ml-100k"
VALIDATION, TEST, SPLIT_SEED = 0.1, 0.1, 0  # shares of all ratings
RARE = 10  # rows of a user or an item with fewer training ratings leave validation and test
RANKS, GAINS = (8, 16, 32), (1.0, 2.0, 4.0)  # d, γ
DEPTH = {"regular": 1, "hashed": 1, "sketched": 4}  # k; of what is stored as it is, not read
FIG1_RANK, FIG1_GAIN = 32, 1.0
THRESHOLDS = (2.0, 4.0, 8.0, 16.0, math.inf)  # ε; 16 is in the paper's text, not in its list
DECAY = 1.0  # b, on which the paper is silent
TOP_SHARE = 0.05  # of the users, those with most training ratings: "top users"
EPOCHS: dict[Scale, int] = {"small": 10, "full": 100}  # T; the paper's is 100
SEEDS: dict[Scale, tuple[int, ...]] = {"small": (0,), "full": (0, 1, 2)}
BUDGET, BUDGET_SEEDS, BUDGET_MINUTES = "002/budget", (0, 1, 2), 5.0


def place(quarters: int) -> float:
    """On the logarithmic grid of η and λ: 10^(quarters/4), three digits."""
    return float(f"{10 ** (quarters / 4):.3g}")


RATES = (-10, -8, -6, -4)  # η from 0.00316 to 0.1
STRENGTHS, STRENGTH_START = (-12, -8, -4, 0), -6  # λ from 0.001 to 1; 0.0316 while η is searched
LAMBDAS = (0.0, *map(place, (-12, -8, -6, -4, -2, 0, 4)))  # of figure 1: from 10 to 0


class Line(NamedTuple):
    """What η and λ are searched for. gain: γ, 1 where vectors are stored as they are."""

    storage: Storage
    rank: int
    gain: float

    @property
    def label(self) -> str:
        if self.storage == "regular":
            return f"regular, d = {self.rank}"
        kind = "" if self.storage == "sketched" else "hashed, "
        return f"{kind}d = {self.rank}, γ = {self.gain:g}"


FIG1 = {
    "regular": Line("regular", FIG1_RANK, 1.0),
    "hashed, k = 1": Line("hashed", FIG1_RANK, FIG1_GAIN),
    "sketched, k = 4": Line("sketched", FIG1_RANK, FIG1_GAIN),
}
REGULAR = tuple(Line("regular", rank, 1.0) for rank in RANKS)
SKETCHED = tuple(Line("sketched", rank, gain) for rank in RANKS for gain in GAINS)

TEXT = {
    "best λ, figure 1": 0.1,  # around
    "best λ, figure 2": 0.01,  # often below
    "near regular from ε": 16.0,
    "top users' divergence": 0.1,  # of everyone's
}

SEARCH_RUNS = len(RATES) + len(STRENGTHS) + 2 + 2  # of a line: η, λ, then both with smaller steps


class Work(NamedTuple):
    """Runs of one line for a figure, at most, without those of the figures before it."""

    line: Line
    runs: int
    epochs: int

    @property
    def core_seconds(self) -> float:
        return self.runs * (RUN_SECONDS + self.epochs * epoch_seconds(self.line))


EPOCH_SECONDS = {
    "regular": (0.1, 0.001),
    "hashed": (0.1, 0.01),
    "sketched": (0.15, 0.036),
}  # base, and a component
RUN_SECONDS, PROGRAM_SECONDS = (
    1.0,
    5.0,
)  # measuring a run; compiling the program that a line's runs share


def epoch_seconds(line: Line) -> float:
    """Of one core of about 2020, MovieLens-1M's 800,000 training ratings."""
    base, component = EPOCH_SECONDS[line.storage]
    return base + component * line.rank


def plan(figure: str, scale: Scale) -> list[Work]:
    """What a figure trains at most after those before it. Figure 4 has the runs of figure 3."""
    epochs, seeds = EPOCHS[scale], len(SEEDS[scale])
    search = dict.fromkeys((*REGULAR, *SKETCHED), SEARCH_RUNS)
    if figure == "002/fig1":
        runs = dict.fromkeys(FIG1.values(), SEARCH_RUNS + len(LAMBDAS) * seeds)
    elif figure == "002/fig2":
        more = seeds - 1  # the searches have the first seed
        runs = {
            line: (0 if line in FIG1.values() else number) + more for line, number in search.items()
        }
    elif figure == "002/fig3":
        runs = dict.fromkeys(SKETCHED, (len(THRESHOLDS) - 1) * seeds)
    else:
        runs = {}
    return [Work(line, number, epochs) for line, number in runs.items() if number]


def minutes(figure: str, scale: Scale, cores: int = 2) -> float:
    """Of a plan, runs side by side on so many cores; measuring and compiling are done by one."""
    works = plan(figure, scale)
    alone = sum(work.runs * RUN_SECONDS for work in works) + PROGRAM_SECONDS * len(works)
    trained = sum(work.core_seconds - work.runs * RUN_SECONDS for work in works)
    return (alone + trained / cores) / 60 + 0.2


def _figure(
    number: int, what: str, x_name: str, y_name: str, log: tuple[bool, bool] = (False, False)
) -> Figure:
    name = f"002/fig{number}"
    return Figure(
        name, what, x_name, y_name, (MOVIELENS,), log, minutes(name, "small"), minutes(name, "full")
    )


CATALOGUE = Catalogue.of(
    "002",
    "002, IH&MMSec 2016",
    (
        _figure(
            1,
            f"RMSE over λ, d = {FIG1_RANK}, γ = {FIG1_GAIN:g}: regular, hashed, sketched",
            "λ",
            "RMSE",
        ),
        _figure(2, "best λ over (d, γ)", "d", "best λ"),
        _figure(
            3,
            "RMSE over the threshold ε (no privacy parameter), against regular",
            "threshold ε",
            "RMSE",
        ),
        _figure(
            4,
            "divergence of errors, trained on and held out, over the threshold ε (no privacy"
            " parameter)",
            "threshold ε",
            "KL in nats",
            (False, True),
        ),
        Figure(
            BUDGET,
            "held-out error at equal ε, δ and unit: sketch-dpsgd over γ, dense DP-SGD, Langevin,"
            " joint noise",
            "ε",
            "RMSE",
            (BUDGET_DATA,),
            (False, False),
            BUDGET_MINUTES,
        ),
    ),
)
FIGURES = CATALOGUE.figures
