"""How the programs of an audit are compiled: as they ship, or quickly.

Small programs spend their time in the compiler. What `--quick` tries is the same program with fewer
optimisations; draws in whole numbers are the same bits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from importlib import metadata

# Beside its fusion emitters XLA had a simpler generator until jaxlib 0.10. It takes half the time.
LAST_WITH_SIMPLER = (0, 10)
SIMPLER = "--xla_cpu_use_fusion_emitters=false"


def has_simpler(version: str) -> bool:
    """Whether this jaxlib knows `SIMPLER`. XLA ends a process that gives it an unknown flag."""
    return tuple(int(part) for part in version.split(".")[:2]) <= LAST_WITH_SIMPLER


def start_quickly() -> None:
    """Has this process and its children compile by the simpler generator, where there is one.

    Called before jax is imported; later it does nothing.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if (
        "jax" not in sys.modules
        and SIMPLER not in flags
        and has_simpler(metadata.version("jaxlib"))
    ):
        os.environ["XLA_FLAGS"] = f"{flags} {SIMPLER}".strip()


@contextlib.contextmanager
def compiling(*, quickly: bool) -> Generator[None]:
    """Compiles with few optimisations where `quickly`, or where the process does so anyway."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", quickly or before)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
