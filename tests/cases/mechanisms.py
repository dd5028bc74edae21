"""Every mechanism of the table at few steps: what tests over all mechanisms share."""

import dataclasses
import functools

from dpmf_jax.data import synthetic
from dpmf_jax.mechanisms import table
from experiments.fit import mechanisms as fit_mechanisms

RATINGS = synthetic.generate(num_users=30, num_items=20, num_ratings=200, rank=2)
FEW = {"rank": 2, "steps": 3, "rounds": 3, "epochs": 2, "user_passes": 2}


@functools.cache
def phases(name, **more):
    """(phases, settings) by the flags FEW and `more`; shared by tests, which change neither."""
    known = {field.name for field in dataclasses.fields(table()[name].flags)}
    few = {flag: value for flag, value in FEW.items() if flag in known}
    flags = fit_mechanisms.flags(name, **few | more)
    return fit_mechanisms.phases_and_settings(name, flags, RATINGS)
