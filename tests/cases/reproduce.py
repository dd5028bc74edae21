"""Small ratings, runs and settings for the tests of reproductions."""

import dataclasses
import math
from pathlib import Path

from dpmf_jax.data import synthetic
from dpmf_jax.data.ratings import Ratings
from experiments.cli import main as cli
from experiments.reproduce.paper001 import figures, plans, work
from experiments.reproduce.paper001.plans import Setting
from experiments.reproduce.paper001.runs import Run
from experiments.reproduce.paper002 import runs as sketch_runs
from experiments.reproduce.paper002.table import Line

FIGURE = figures.FIGURES["001/fig1"]
SERIES = ("0.15", "0.20", "0.30", "0.50", "0.75", "0.90", "non-private")
VARIANTS = (*plans.BESIDE, "non-private")


def generated(seed: int = 3) -> Ratings:
    return synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=seed)


def some(name: str, seed: int = 3) -> Ratings:
    """Some more, under the name of a data set."""
    some = synthetic.generate(num_users=40, num_items=20, num_ratings=380, seed=seed)
    return dataclasses.replace(some, name=name)


def rating_file(folder: Path, ratings: Ratings | None = None) -> Path:
    """A folder of data sets in which one is a small file of the test's own, in the official layout.

    ratings: what it holds, by the name of the data set; `tiny` as ml-1m unless given.
    """
    name, some = ("ml-1m", generated()) if ratings is None else (ratings.name, ratings)
    file, separator = {"ml-1m": ("ratings.dat", "::"), "ml-100k": ("u.data", "\t")}[name]
    rows = zip(some.user, some.item, some.value, strict=True)
    lines = [separator.join(map(str, (u + 1, i + 1, round(value), 0))) for u, i, value in rows]
    (folder / name).mkdir(parents=True)
    (folder / name / file).write_text("\n".join(lines) + "\n")
    return folder


def small_runs(
    ratings, series=("0.15", "non-private"), seeds=(0, 1), steps=23, rank=5, **change
) -> list[Run]:
    rate = plans.SETTINGS["learning_rate"]
    return [
        run._replace(**change)
        for name in series
        for run in work.runs_of(
            FIGURE, Setting(name, None, rank, rate, steps, seeds), ratings.rating_range
        )
    ]


def beside_runs(
    ratings, variants=VARIANTS, series=("0.90",), steps=13, rank=3, seed=0
) -> list[Run]:
    rate = plans.SETTINGS["learning_rate"]
    return [
        run
        for variant in variants
        for name in (("non-private",) if variant == "non-private" else series)
        for run in work.runs_of(
            FIGURE,
            Setting(name, None, rank, rate, steps, (seed,), beside=variant),
            ratings.rating_range,
        )
    ]


def command_line(*words: str) -> int:
    try:
        return cli.main(["reproduce", *words])
    except SystemExit as ended:
        return int(ended.code or 0)


# Paper 002 at a size of seconds, by the names of its settings.
RANKS, GAINS = (2, 3), (1.0, 4.0)
SKETCH = {
    "RANKS": RANKS,
    "GAINS": GAINS,
    "REGULAR": tuple(Line("regular", rank, 1.0) for rank in RANKS),
    "SKETCHED": tuple(Line("sketched", rank, gain) for rank in RANKS for gain in GAINS),
    "FIG1": {
        "regular": Line("regular", 3, 1.0),
        "hashed, k = 1": Line("hashed", 3, 1.0),
        "sketched, k = 4": Line("sketched", 3, 1.0),
    },
    "EPOCHS": {"small": 2, "full": 3},
    "RATES": (-6, -4),
    "STRENGTHS": (-8, -4),
    "LAMBDAS": (0.0, 0.1, 10.0),
    "THRESHOLDS": (1.0, 16.0, math.inf),
    "RARE": 4,
    "TOP_SHARE": 0.2,
}
SKETCHED = sketch_runs.Run("sketched", 3, 1.0, 0.1, 0.1, None, 2, 0)
SEVERAL = (SKETCHED, SKETCHED._replace(threshold=0.3), SKETCHED._replace(seed=1))
