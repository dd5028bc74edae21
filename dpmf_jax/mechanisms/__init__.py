"""Families of mechanisms, one package each; its module `spec` declares its mechanisms."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmf_jax.mechanisms.spec import Spec


@functools.cache
def table() -> Mapping[str, Spec]:
    """Every mechanism that a family declares, by name, paper by paper. Imports no jax."""
    families = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    specs = [
        spec
        for family in families
        for spec in importlib.import_module(f"{__name__}.{family}.spec").SPECS
    ]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.paper)}
