"""What a release costs. Host only: no JAX, and heavy packages are imported where they are used.

- `loss` is what a release spends. `price` turns it into ε by every accountant: `gaussian` and
  `pure` price one kind of loss, `composition` prices subsampled steps and mixes.
- `gaussian`, `pure`, `calibration` (for subsampled steps) and `objective` (for paper 003) say what
  a budget buys. `langevin` writes Langevin dynamics as subsampled steps. `shuffle` prices local
  reports that a trusted shuffler has mixed, `repetition` the best of a random number of runs.
- `guarantee` is the claim that is printed with every result: `terms` are its fields, `relation`
  says which data sets it is about, `status` how far it is proved, and `words` holds the sentences
  that guarantees share.
- `user` prices all ratings of one user. `ledger` adds releases up.
- `verification` holds the closed form of paper 001 against every other way to compute it.

What a paper promises stands beside its mechanisms.
"""

from accounting import (
    calibration,
    composition,
    gaussian,
    guarantee,
    loss,
    objective,
    price,
    pure,
    relation,
    shuffle,
    status,
)
from accounting.guarantee import Guarantee, compose, no_guarantee, priced

__all__ = [
    "Guarantee",
    "calibration",
    "compose",
    "composition",
    "gaussian",
    "guarantee",
    "loss",
    "no_guarantee",
    "objective",
    "price",
    "priced",
    "pure",
    "relation",
    "shuffle",
    "status",
]

PROJECT = "dpmf-jax"  # see dpmf_jax.installed
