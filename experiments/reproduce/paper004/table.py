"""What of paper 004 can be reproduced, and the slides' numbers; NumPy and jax are not needed to
ask.
"""

from __future__ import annotations

from experiments.reproduce.catalogue import Catalogue, Figure

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

CATALOGUE = Catalogue.of(
    "004",
    "004, TKDE 2018",
    (
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
    ),
)
FIGURES = CATALOGUE.figures
