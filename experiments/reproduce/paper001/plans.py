"""Which settings and how many steps a figure needs, and how long that takes; NumPy and jax are not
needed to ask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dpmf_jax.errors import UsageError
from experiments.reproduce.flags import Command
from experiments.reproduce.paper001.figures import (
    NON_PRIVATE,
    Figure,
    Request,
    choose_series,
    points,
)

# The paper's text gives rank, learning rate, C, δ and δ_r; its plots give the rest (τ, centring by
# movie means).
SETTINGS: dict[str, Any] = {
    "rank": 20,
    "learning_rate": 5e-4,
    "regularization": 0.01,
    "clip_norm": 1.0,
    "center": "item",
    "delta": 1e-5,
}
DELTA_STEP = 0.01  # δ, with which the paper writes σ for an ε_i
RANKS = (4, 12, 20, 44, 60, 96, 128, 192, 256, 320, 512)
LEARNING_RATES = (0.0003, 0.0005, 0.0007, 0.0010)
SEEDS = (0, 1, 2)
MOST_STEPS = 20_000  # of a run that a rule ends; none on MovieLens comes near
TIMED_STEPS = {"small": 50, "full": 300}  # the paper's times are means of 300

# On MovieLens, ranks whose runs fit a plotted rank's points where its own do not. Shown beside
# them, decides nothing.
LIKELY_RANKS = {44: 48}

# The small scale: three seeds up to the first rank, one up to the second, none beyond.
SMALL_RANKS = (60, 128)

# Trained beside each private setting on 80% of the ratings, at its J and its exact ε; and at the
# longest J of a rank, one run without privacy. Where little is trained beside, up to this rank.
BESIDE = ("published", "joint-noise", "public-items")
FIXED_STEPS = ("public-items",)  # what a step of these costs depends on how many there are
SMALL_BESIDE = 20

# Milliseconds a step of one run on one of two CPU cores, both at work, MovieLens-1M; between and
# beyond: linear.
COST = {4: 12.5, 20: 27.0, 60: 67.0, 128: 81.0, 192: 118.0, 512: 430.0}
COST_OF = (
    "by a table of ms a step at MovieLens-1M size, measured on two cores of a server, not here"
)
EXPECTED = {"patience": 2_000, "small fall": 4_000}  # steps until a rule ends a run, for estimates


NOT_OVER_RATES = (
    "Nothing was trained beside: over μ the paper's numbers of steps are not known and ours are"
    " those of early stopping by patience, which is not private, so there is no price to be"
    " equal at."
)


class Setting(NamedTuple):
    """One curve, or one point over a setting: what is trained, and for how long.

    x: where it stands on the axis of a figure over settings; None on one over iterations.
    num_steps: J; where a rule ends the run (see `stopping`), the most steps.
    seeds: empty where the scale trains nothing here and the price alone is shown.
    implied: the J, not a whole number, that the paper's overall ε implies; None where none is
      plotted.
    beside: the variant that is trained, on the part of the ratings that a test leaves; None for the
      paper's own, on all ratings.
    """

    series: str
    x: float | None
    rank: int
    learning_rate: float
    num_steps: int
    seeds: tuple[int, ...]
    rule: str | None = None
    implied: float | None = None
    beside: str | None = None

    @property
    def is_likely(self) -> bool:
        """Whether this is another rank than the one that is plotted, see `LIKELY_RANKS`."""
        return self.x in LIKELY_RANKS and self.rank != self.x

    @property
    def expected_steps(self) -> int:
        return self.num_steps if self.rule is None else min(self.num_steps, EXPECTED[self.rule])


class Plan(NamedTuple):
    """settings: what is asked for.
    left_out: the ranks of the figure that the scale does not train.
    beside: the variants that are trained beside the settings.
    not_beside: which variants are not, in words; "" where all of them are.
    """

    settings: tuple[Setting, ...]
    left_out: tuple[int, ...] = ()
    beside: tuple[Setting, ...] = ()
    not_beside: str = ""

    @property
    def trained(self) -> tuple[Setting, ...]:
        return self.settings + self.beside


def plan(figure: Figure, request: Request) -> Plan:
    """What a figure needs.

    Raises: UsageError for a series or a rank that the figure does not have.
    """
    series = choose_series(figure.series, request.series)
    if request.ranks is not None and figure.x_name != "n":
        raise UsageError(
            f"{figure.name} is not over ranks", where="--ranks", fix="leave out --ranks"
        )
    make = {
        "iteration": _curves,
        "epsilon_i": _over_epsilon,
        "n": _over_ranks,
        "mu": _over_learning_rates,
    }
    return _with_variants(figure, request, make[figure.x_name](figure, request, series))


def requests(chosen: Sequence[Figure], command: Command, **rest: Any) -> dict[Figure, Request]:
    """What is asked of every figure. --ranks and --series go to those that have them, and one of
    them must.

    Raises: UsageError where a figure has nothing of what is asked.
    """
    over_ranks = [figure for figure in chosen if figure.x_name == "n"]
    known = tuple(dict.fromkeys(series for figure in chosen for series in figure.series))
    asked = None if command.series is None else choose_series(known, command.series)
    wanted = {}
    for figure in chosen:
        series = None if asked is None else tuple(name for name in figure.series if name in asked)
        if series == ():
            choose_series(figure.series, asked)
        ranks = command.ranks if figure in over_ranks or not over_ranks else None
        wanted[figure] = Request(
            series=series, ranks=ranks, seeds=command.seeds, beside=command.beside, **rest
        )
        plan(figure, wanted[figure])
    return wanted


def _with_variants(figure: Figure, request: Request, paper: Plan) -> Plan:
    """The plan with the variants beside it, where its private runs have a J to put a price on."""
    private = [
        setting
        for setting in paper.settings
        if setting.series != NON_PRIVATE and not setting.is_likely
    ]
    if "ms_per_iteration" in figure.axes or not private:
        return paper
    if figure.x_name == "mu":
        return paper._replace(not_beside=NOT_OVER_RATES)
    if request.beside == "none":
        return paper._replace(
            not_beside="Nothing was trained beside the paper's settings (--beside none)."
        )
    few = request.beside == "auto" and request.scale == "small"
    beside: list[Setting] = []
    left = []
    for rank in dict.fromkeys(setting.rank for setting in private):
        here = [setting for setting in private if setting.rank == rank]
        if not here[0].seeds or (few and rank > SMALL_BESIDE):
            left.append(rank)
            continue
        seeds = here[0].seeds[:1] if few else here[0].seeds
        here = [setting._replace(seeds=seeds, implied=None) for setting in here]
        beside += [setting._replace(beside=variant) for setting in here for variant in BESIDE]
        longest = max(here, key=lambda setting: setting.num_steps)
        beside.append(longest._replace(series=NON_PRIVATE, beside=NON_PRIVATE))
    words = (
        f"Nothing was trained beside rank {', '.join(map(str, left))}; --beside all has what the"
        " scale trains."
    )
    return paper._replace(beside=tuple(beside), not_beside=words if left else "")


def _setting(
    series: str, x: float | None, num_steps: int, seeds: tuple[int, ...], **rest: Any
) -> Setting:
    return Setting(
        series,
        x,
        **({name: SETTINGS[name] for name in ("rank", "learning_rate")} | rest),
        num_steps=num_steps,
        seeds=seeds,
    )


def _curves(figure: Figure, request: Request, series: tuple[str, ...]) -> Plan:
    """J is the last plotted step + 1."""
    last = {point.series: round(point.x) for point in figure.plotted if point.kind == "line_end"}
    seeds = SEEDS if request.seeds is None else request.seeds
    return Plan(tuple(_setting(name, None, last[name] + 1, seeds) for name in series))


def _over_epsilon(figure: Figure, request: Request, series: tuple[str, ...]) -> Plan:
    implied = {
        point.series: point.num_steps
        for point in points(figure.steps)
        if point.num_steps is not None
    }
    seeds = SEEDS if request.seeds is None else request.seeds
    return Plan(
        tuple(
            _setting(name, float(name), round(implied[name]), seeds, implied=implied[name])
            for name in series
        )
    )


def _over_ranks(figure: Figure, request: Request, series: tuple[str, ...]) -> Plan:
    """J is what the paper's overall ε implies, rounded. A rule ends the non-private runs."""
    ranks = (
        RANKS if request.ranks is None else tuple(rank for rank in RANKS if rank in request.ranks)
    )
    if unknown := sorted(set(request.ranks or ()) - set(RANKS)):
        raise UsageError(
            f"the figure has no rank {unknown[0]}",
            where="--ranks",
            fix=f"choose from {' '.join(map(str, RANKS))}",
        )
    implied = {
        (point.series, round(point.x)): point.num_steps
        for point in (points(figure.steps) if figure.steps else ())
        if point.num_steps is not None
    }
    timed = "ms_per_iteration" in figure.axes
    priced = "overall_epsilon" in figure.axes  # the price needs no training
    settings, left_out = [], []
    for rank in ranks:
        seeds = _seeds(rank, request)
        if not seeds:
            left_out.append(rank)
        for name in series:
            place = {"rank": rank, "seeds": seeds[:1] if timed else seeds}
            if timed and seeds:
                settings.append(_setting(name, float(rank), TIMED_STEPS[request.scale], **place))
            elif name == NON_PRIVATE and seeds:
                settings.append(_setting(name, float(rank), MOST_STEPS, rule="small fall", **place))
            elif name != NON_PRIVATE and (seeds or priced) and not timed:
                steps = implied[name, rank]
                settings.append(_setting(name, float(rank), round(steps), implied=steps, **place))
                if (
                    rank in LIKELY_RANKS
                    and seeds
                    and "rmse" in figure.axes
                    and figure.paper_data == "ml-1m"
                ):
                    likely = {"rank": LIKELY_RANKS[rank], "seeds": seeds[:1]}
                    settings.append(_setting(name, float(rank), round(steps), **likely))
    return Plan(tuple(settings), tuple(left_out))


def _seeds(rank: int, request: Request) -> tuple[int, ...]:
    """The seeds that a rank is trained with; a rank that is asked for by name always is."""
    three, one = (math.inf, math.inf) if request.scale == "full" else SMALL_RANKS
    if rank > one and request.ranks is None:
        return ()
    if request.seeds is not None:
        return request.seeds
    return SEEDS if rank <= three else SEEDS[:1]


def _over_learning_rates(figure: Figure, request: Request, series: tuple[str, ...]) -> Plan:
    """The paper's numbers of steps are not known, so rules end all runs."""
    seeds = SEEDS if request.seeds is None else request.seeds
    return Plan(
        tuple(
            _setting(
                name,
                rate,
                MOST_STEPS,
                seeds,
                learning_rate=rate,
                rule="small fall" if name == NON_PRIVATE else "patience",
            )
            for name in series
            for rate in LEARNING_RATES
        )
    )


def cost(rank: int) -> float:
    """Milliseconds a step of one run on one CPU core, by `COST`."""
    known = sorted(COST.items())
    (low, at_low), (high, at_high) = next(
        (pair for pair in itertools.pairwise(known) if rank <= pair[1][0]), (known[-2], known[-1])
    )
    return at_low + (at_high - at_low) * (rank - low) / (high - low)


def work(settings: Iterable[Setting]) -> dict[tuple[Any, ...], int]:
    """Steps of every run that the settings need, each run once.

    The keys are rank, series, learning rate, seed, variant and, where fixed, the number of steps.
    """
    steps: dict[tuple[Any, ...], int] = {}
    for setting in settings:
        fixed = setting.num_steps if setting.beside in FIXED_STEPS else None
        for seed in setting.seeds:
            run = (setting.rank, setting.series, setting.learning_rate, seed, setting.beside, fixed)
            steps[run] = max(steps.get(run, 0), setting.expected_steps)
    return steps


def minutes(settings: Iterable[Setting], cores: int) -> float:
    """An estimate by `COST`, for so many CPU cores."""
    return sum(cost(rank) * steps for (rank, *_), steps in work(settings).items()) / cores / 60_000
