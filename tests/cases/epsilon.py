"""What the tests of `dpmf epsilon` share: command lines, and what is read off their pages and
files.
"""

import csv
from pathlib import Path

STEPS = [
    "gaussian",
    "--epsilon-step",
    "0.4",
    "--delta-step",
    "0.01",
    "--steps",
    "300",
    "--delta",
    "1e-5",
]

SAMPLED = ["sampled", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100"]

LANGEVIN = [
    "langevin",
    "--sampling-rate",
    "0.01",
    "--learning-rate",
    "1e-4",
    "--clip-norm",
    "1",
    "--steps",
    "20",
]

SHAPE = ["--range-width", "4", "--rank", "50"]

CLIPPED = ["--clip-norm", "1", "--honest-shares", "10"]

EVERY = {
    "gaussian": STEPS,
    "sampled": SAMPLED,
    "langevin": [*LANGEVIN, "--temperature", "1"],
    "local": ["local", "--epsilon", "1", "--rounds", "2", "--reports", "1000"],
    "objective": ["objective", "--scale", "80", *SHAPE],
    "federated": ["federated", "--epsilon", "0.1", "--iterations", "100"],
    "pure": ["pure", "--epsilon-round", "0.1", "--rounds", "5"],
}

ODD = "1.2345612e-5"  # in six digits nearest 1.23456e-05, a smaller δ than is priced

BAD_NUMBERS = ("nan", "inf", "-inf", "0", "-1", "-0.0")


def rows_of(text: str) -> dict[str, float]:
    """The printed table: ε by accountant."""
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if line.startswith("│")
    ]
    return {name: float(value) for name, value, _ in cells}


def curve(path: Path) -> dict[str, list[float]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}
