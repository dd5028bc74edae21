"""What a release costs. Host only: no JAX here, and dp_accounting and SciPy are imported where they are used.

`accounting.gaussian` prices Gaussian steps; `accounting.guarantee` is the claim that is printed with every result.
"""

from accounting import gaussian, guarantee
from accounting.guarantee import Guarantee, compose, gaussian_guarantee, no_guarantee

__all__ = ["Guarantee", "compose", "gaussian", "gaussian_guarantee", "guarantee", "no_guarantee"]
