"""Measurements behind the statements of paper 002: what stored rows say to each.

Each takes the stored rows and returns a `Judged`, or raises `NotTestable` where rows are missing.
The paper gives a number for few of them; the other criteria are ours, and fixed here. Differences
below `LITTLE` count as none.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from experiments.reproduce.catalogue import Record, Stored
from experiments.reproduce.claims import Judged, rows_of, values_of
from experiments.reproduce.paper002 import table
from experiments.reproduce.paper002.budget import GLOBAL, METHODS, PRICED
from experiments.reproduce.paper002.table import Line

LITTLE_ERROR = 0.001  # relative, of RMSE
LITTLE = 0.01  # relative, of divergences
CLOSE = 0.01  # relative: how near to regular's RMSE is near
AROUND = 10**0.5  # a factor: nearer to the number than to ten times it, or to a tenth of it
EDGE = math.log(AROUND) + 0.001  # places of the grid have three digits
MUCH = 0.1  # of ε: a divergence much smaller than it
REGULAR, HASHED, SKETCH = table.FIG1


def _rows(stored: Stored, figure: str) -> list[Record]:
    return rows_of(stored, table.FIGURES[figure])


def _values(rows: Sequence[Record], series: str, axis: str) -> dict[float, float]:
    return dict(sorted(values_of(rows, series, axis).items()))


def _over_thresholds(stored: Stored, figure: str, axis: str) -> dict[Line, dict[float, float]]:
    rows = _rows(stored, figure)
    return {line: _values(rows, line.label, axis) for line in table.SKETCHED}


def _regular(stored: Stored, figure: str, axis: str) -> dict[int, float]:
    """Of regular storage, by d."""
    rows = _rows(stored, figure)
    return {
        rank: _values(rows, Line("regular", rank, 1.0).label, axis)[0.0] for rank in table.RANKS
    }


def _named(values: Mapping[Line, Mapping[float, float]]) -> dict[str, float]:
    return {
        f"{line.label}, {x:g}": value for line, here in values.items() for x, value in here.items()
    }


def _listed(values: Iterable[float]) -> str:
    return ", ".join("diverged" if math.isinf(value) else f"{value:.4f}" for value in values)


def _places(xs: Iterable[float]) -> str:
    return ", ".join("∞" if math.isinf(x) else f"{x:g}" for x in xs)


def _lines(values: Mapping[Line, Mapping[float, float]]) -> str:
    places = _places(next(iter(values.values())))
    said = "; ".join(f"{line.label}: {_listed(here.values())}" for line, here in values.items())
    return f"at ε = {places}: {said}"


def _count(yes: int, all_of: int, what: str) -> str:
    return f"{yes} of {all_of} {what}"


def _figure1(stored: Stored, axis: str) -> dict[str, dict[float, float]]:
    rows = _rows(stored, "002/fig1")
    return {series: _values(rows, series, axis) for series in table.FIG1}


def _best(values: Mapping[float, float]) -> float:
    return min(values, key=lambda x: (values[x], x))


def optimum(stored: Stored) -> Judged:
    """Every storage's best λ is around the paper's, and at every larger one the error is larger."""
    valid, test = _figure1(stored, "rmse_valid"), _figure1(stored, "rmse")
    best = {series: _best(values) for series, values in valid.items()}
    around = {
        series: one > 0 and abs(math.log(one / table.TEXT["best λ, figure 1"])) <= EDGE
        for series, one in best.items()
    }
    beyond = {
        series: [value for x, value in test[series].items() if x >= one]
        for series, one in best.items()
    }
    rises = {
        series: (
            all(b >= (1 - LITTLE_ERROR) * a for a, b in itertools.pairwise(line))
            and line[-1] > line[0]
        )
        for series, line in beyond.items()
    }
    value = "best λ " + ", ".join(f"{one:g} ({series})" for series, one in best.items())
    whys = [f"{series} is not around it" for series, holds in around.items() if not holds]
    whys += [
        f"{series} does not rise at each step beyond"
        for series, holds in rises.items()
        if not holds
    ]
    return Judged(value, not whys, "; ".join(whys), best)


def degradation(stored: Stored) -> Judged:
    """From the best λ to none: the error grows, and least in the sketch."""
    grows = {}
    for series, values in _figure1(stored, "rmse").items():
        grows[series] = values[0.0] / min(values.values()) - 1
    value = "RMSE at λ = 0 above the best: " + ", ".join(
        f"{more:.2%} ({series})" for series, more in grows.items()
    )
    holds = grows[SKETCH] < min(grows[REGULAR], grows[HASHED]) - LITTLE_ERROR
    return Judged(value, holds, "", grows)


def without_regularization(stored: Stored) -> Judged:
    errors = {series: values[0.0] for series, values in _figure1(stored, "rmse").items()}
    value = "RMSE at λ = 0: " + ", ".join(
        f"{error:.4f} ({series})" for series, error in errors.items()
    )
    trained = {series: values[0.0] for series, values in _figure1(stored, "rmse_train").items()}
    holds = errors[SKETCH] < (1 - LITTLE_ERROR) * min(errors[REGULAR], errors[HASHED])
    why = "on the ratings trained on: " + ", ".join(
        f"{error:.4f} ({series})" for series, error in trained.items()
    )
    return Judged(value, holds, why, errors)


def _best_lambdas(stored: Stored) -> dict[tuple[int, float], float]:
    rows = _rows(stored, "002/fig2")
    grid = {gain: _values(rows, f"γ = {gain:g}", "best_lambda") for gain in table.GAINS}
    return {(rank, gain): grid[gain][float(rank)] for rank in table.RANKS for gain in table.GAINS}


def _grid(values: Mapping[tuple[int, float], float]) -> str:
    return (
        "; ".join(
            f"d = {rank}: {', '.join(f'{values[rank, gain]:g}' for gain in table.GAINS)}"
            for rank in table.RANKS
        )
        + f" at γ = {_places(table.GAINS)}"
    )


def _cells(values: Mapping[tuple[int, float], float]) -> dict[str, float]:
    return {f"d = {rank}, γ = {gain:g}": value for (rank, gain), value in values.items()}


def falls_with_gain(stored: Stored) -> Judged:
    best = _best_lambdas(stored)
    rows = [[best[rank, gain] for gain in table.GAINS] for rank in table.RANKS]
    return Judged(_grid(best), all(map(_goes_down, rows)), "", _cells(best))


def grows_with_rank(stored: Stored) -> Judged:
    best = _best_lambdas(stored)
    rows = [[best[rank, gain] for rank in reversed(table.RANKS)] for gain in table.GAINS]
    return Judged(_grid(best), all(map(_goes_down, rows)), "", _cells(best))


def _goes_down(line: Sequence[float]) -> bool:
    """Never up from one to the next, and lower at the end."""
    return all(after <= before for before, after in itertools.pairwise(line)) and line[-1] < line[0]


def often_small(stored: Stored) -> Judged:
    best = _best_lambdas(stored)
    small = sum(value < table.TEXT["best λ, figure 2"] for value in best.values())
    return Judged(
        f"{_count(small, len(best), 'below it')}: {_grid(best)}",
        small > len(best) / 2,
        "",
        _cells(best),
    )


def improves(stored: Stored) -> Judged:
    """The error falls from 2 to no threshold, and rises nowhere on the way."""
    errors = _over_thresholds(stored, "002/fig3", "rmse")
    holds = {
        line: _steady(list(here.values())[::-1], LITTLE_ERROR) for line, here in errors.items()
    }
    return Judged(_lines(errors), all(holds.values()), _failing(holds), _named(errors))


def _steady(line: Sequence[float], little: float) -> bool:
    """Higher at the end than at the start, and never lower from one to the next, but for little."""
    up = all(after >= (1 - little) * before for before, after in itertools.pairwise(line))
    return up and line[-1] > (1 + little) * line[0]


def _failing(holds: Mapping[Line, bool]) -> str:
    names = [line.label for line, one in holds.items() if not one]
    return f"not so: {'; '.join(names)}" if names else ""


def gradually(stored: Stored) -> Judged:
    """What a larger threshold brings becomes less from step to step."""
    errors = _over_thresholds(stored, "002/fig3", "rmse")
    gains = {
        line: [a - b for a, b in itertools.pairwise(here.values())] for line, here in errors.items()
    }
    finite = {
        line: gain[: len(table.THRESHOLDS) - 2] for line, gain in gains.items()
    }  # up to the last that is finite
    slack = LITTLE_ERROR * min(min(here.values()) for here in errors.values())
    holds = {
        line: (
            all(after <= before + slack for before, after in itertools.pairwise(gain))
            and gain[0] > max(gain[1:], default=0.0)
        )
        for line, gain in finite.items()
    }
    value = "RMSE falls by " + "; ".join(
        f"{line.label}: {_listed(gain)}" for line, gain in finite.items()
    )
    value += f" between ε = {_places(sorted(x for x in table.THRESHOLDS if math.isfinite(x)))}"
    return Judged(
        value,
        all(holds.values()),
        _failing(holds),
        {line.label: gain[0] for line, gain in finite.items()},
    )


def nears_regular(stored: Stored) -> Judged:
    errors, regular = (
        _over_thresholds(stored, "002/fig3", "rmse"),
        _regular(stored, "002/fig3", "rmse"),
    )
    epsilon = table.TEXT["near regular from ε"]
    above = {line: here[epsilon] / regular[line.rank] - 1 for line, here in errors.items()}
    value = f"RMSE at ε = {epsilon:g} over regular's: " + "; ".join(
        f"{line.label}: {more:+.2%}" for line, more in above.items()
    )
    holds = {line: more <= CLOSE for line, more in above.items()}
    return Judged(
        value,
        all(holds.values()),
        _failing(holds),
        {line.label: more for line, more in above.items()},
    )


def divergence_grows(axis: str, stored: Stored) -> Judged:
    values = _over_thresholds(stored, "002/fig4", axis)
    holds = {line: _steady(list(here.values()), LITTLE) for line, here in values.items()}
    return Judged(_lines(values), all(holds.values()), _failing(holds), _named(values))


def below_regular(axis: str, stored: Stored) -> Judged:
    """At most settings, regular storage of the same rank without a threshold has the higher one."""
    values, regular = _over_thresholds(stored, "002/fig4", axis), _regular(stored, "002/fig4", axis)
    cases = [(line, x, value) for line, here in values.items() for x, value in here.items()]
    below = [value < (1 - LITTLE) * regular[line.rank] for line, _, value in cases]
    exact = [value < (1 - LITTLE) * regular[line.rank] for line, x, value in cases if math.isinf(x)]
    level = "; ".join(f"d = {rank}: {value:.4f}" for rank, value in regular.items())
    value = (
        f"{_count(sum(below), len(below), 'below')}, without a threshold"
        f" {_count(sum(exact), len(exact), 'below')}"
    )
    most = [max(here.values()) for here in values.values()]
    value += (
        f"; regular's {level}; the sketches' from"
        f" {min(map(min, map(dict.values, values.values()))):.4f} to "
    )
    value += f"{max(most):.4f}"
    return Judged(
        value,
        sum(below) > len(below) / 2,
        "",
        {"below": float(sum(below)), "of": float(len(below))},
    )


def compact_leaks_less(over: str, axis: str, stored: Stored) -> Judged:
    """At every threshold the divergence falls over γ, or over falling d."""
    values = _over_thresholds(stored, "002/fig4", axis)
    by = {(line.rank, line.gain): here for line, here in values.items()}
    if over == "γ":
        pairs = [((rank, table.GAINS[0]), (rank, table.GAINS[-1])) for rank in table.RANKS]
    else:
        pairs = [((table.RANKS[-1], gain), (table.RANKS[0], gain)) for gain in table.GAINS]
    cases = [(large, small, x) for large, small in pairs for x in by[large]]
    ratios = [_ratio(by[small][x], by[large][x]) for large, small, x in cases]
    less = [ratio < 1 - LITTLE for ratio in ratios]
    first, last = (
        (table.GAINS[0], table.GAINS[-1]) if over == "γ" else (table.RANKS[-1], table.RANKS[0])
    )
    value = f"{_count(sum(less), len(less), f'lower at {over} = {last:g} than at {first:g}')}; "
    value += (
        f"ratios from {min(ratios):.3f} to {max(ratios):.3f}, median"
        f" {statistics.median(ratios):.3f}"
    )
    return Judged(value, all(less), "", {"lower": float(sum(less)), "of": float(len(less))})


def _ratio(value: float, other: float) -> float:
    """inf where a run left the finite numbers."""
    return value / other if math.isfinite(value) and 0 < other < math.inf else math.inf


def far_below_threshold(stored: Stored) -> Judged:
    values = _over_thresholds(stored, "002/fig4", "kl")
    ratios = {
        x: max(here[x] for here in values.values()) / x
        for x in table.THRESHOLDS
        if math.isfinite(x)
    }
    value = "largest divergence over ε: " + ", ".join(
        f"{ratio:.4f} at ε = {x:g}" for x, ratio in ratios.items()
    )
    why = (
        "a divergence of averages bounds nothing, so no guarantee follows; and ε is no target but a"
        " threshold"
    )
    return Judged(
        value, max(ratios.values()) < MUCH, why, {f"{x:g}": ratio for x, ratio in ratios.items()}
    )


def top_users_errors(stored: Stored) -> Judged:
    every, top = (_over_thresholds(stored, "002/fig4", axis) for axis in ("rmse", "rmse_top"))
    ratios = [_ratio(top[line][x], every[line][x]) for line in every for x in every[line]]
    value = f"RMSE of top users over everyone's from {min(ratios):.4f} to {max(ratios):.4f}"
    return Judged(
        value, max(ratios) < 1 - LITTLE_ERROR, "", {"least": min(ratios), "most": max(ratios)}
    )


def top_users_divergence(axis: str, stored: Stored) -> Judged:
    every, top = (_over_thresholds(stored, "002/fig4", name) for name in (axis, f"{axis}_top"))
    ratios = [_ratio(top[line][x], every[line][x]) for line in every for x in every[line]]
    middle = statistics.median(ratios)
    value = (
        f"top users' over everyone's: median {middle:.3f}, from {min(ratios):.3f} to"
        f" {max(ratios):.3f}"
    )
    holds = middle <= table.TEXT["top users' divergence"] * AROUND
    return Judged(value, holds, "", {"median": middle, "least": min(ratios), "most": max(ratios)})


DENSE, SKETCHES = "dense DP-SGD", tuple(name for name in METHODS if name.startswith("sketch, "))


def sketch_keeps_up(stored: Stored) -> Judged:
    """Of every γ at every ε: the error over that of dense storage at the same price."""
    rows = _rows(stored, table.BUDGET)
    dense = _values(rows, DENSE, "rmse_test")
    over = {
        name: {x: value / dense[x] - 1 for x, value in _values(rows, name, "rmse_test").items()}
        for name in SKETCHES
    }
    value = "; ".join(
        f"{name}: {', '.join(f'{more:+.2%} at ε = {x:g}' for x, more in here.items())}"
        for name, here in over.items()
    )
    numbers = {f"{name}, {x:g}": more for name, here in over.items() for x, more in here.items()}
    return Judged(value, all(more <= LITTLE for more in numbers.values()), "", numbers)


def worth_having(names: Sequence[str], stored: Stored) -> Judged:
    """At some ε: below the global mean, and below item means that cost as much."""
    rows = _rows(stored, table.BUDGET)
    priced = _values(rows, PRICED, "rmse_test")
    (mean,) = _values(rows, GLOBAL, "rmse_test").values()
    mine = {name: _values(rows, name, "rmse_test") for name in names}
    best = {x: min(here[x] for here in mine.values()) for x in priced}
    holds = any(value < (1 - LITTLE) * min(mean, priced[x]) for x, value in best.items())
    value = ", ".join(
        f"{value:.4f} at ε = {x:g} (priced item means {priced[x]:.4f})" for x, value in best.items()
    )
    return Judged(
        f"{value}; global mean {mean:.4f}",
        holds,
        "",
        {f"{x:g}": value for x, value in best.items()},
    )
