"""Small ratings and runs for the tests of reproductions."""

from pathlib import Path

from dpmf_jax.data import synthetic
from experiments.cli import main as cli
from experiments.reproduce.paper001 import figures, plans, work
from experiments.reproduce.paper001.plans import Setting
from experiments.reproduce.paper001.runs import Run

FIGURE = figures.FIGURES["001/fig1"]
SERIES = ("0.15", "0.20", "0.30", "0.50", "0.75", "0.90", "non-private")


def tiny(seed=3):
    return synthetic.generate(num_users=12, num_items=7, num_ratings=40, seed=seed)


def rating_file(folder: Path) -> Path:
    """A folder of data sets in which ml-1m is a small file of the test's own, in the official
    layout.
    """
    ratings = tiny()
    lines = [
        f"{user + 1}::{item + 1}::{round(value)}::0"
        for user, item, value in zip(ratings.user, ratings.item, ratings.value, strict=True)
    ]
    (folder / "ml-1m").mkdir(parents=True)
    (folder / "ml-1m" / "ratings.dat").write_text("\n".join(lines) + "\n")
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


def command_line(*words: str) -> int:
    try:
        return cli.main(["reproduce", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
