"""What a release costs. Host only: no JAX here, and dp_accounting and SciPy are imported where they
are used.

`loss` is what a release spends, `price` turns it into ε by every accountant. `guarantee` is the
claim that is printed with every result, `terms` its fields, `relation` which data sets it is about,
`status` how far it is proved, `words` the sentences that guarantees share. `user` prices all
ratings of one user, `ledger` adds releases up. One module a kind of noise: `gaussian`,
`subsampled`, `pure`, `objective`. `shuffle` amplifies local reports, `composition` prices mixes,
`calibration` and each kind's solvers say what a budget buys, `verification` holds the closed form
to its word. What a paper promises stands beside its mechanisms.
"""

from accounting import (
    gaussian,
    guarantee,
    loss,
    objective,
    price,
    pure,
    relation,
    shuffle,
    status,
    subsampled,
)
from accounting.guarantee import Guarantee, compose, no_guarantee, priced

__all__ = [
    "Guarantee",
    "compose",
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
    "subsampled",
]
