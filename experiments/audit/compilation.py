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
SIMPLER = {"xla_cpu_use_fusion_emitters": "false"}
# Programs of many loops and branches go through these passes again and again, until nothing changes
# any more. They save time where a program runs for long.
NEEDLESS = (
    *("while-loop-invariant-code-motion", "while-loop-constant-sinking"),
    *("tree_reduction_rewriter", "reshape-mover", "simplify-conditional"),
)
# A program is one module of LLVM: cores are busy with other programs.
FEWER = {
    "xla_disable_hlo_passes": ",".join(NEEDLESS),
    "xla_cpu_parallel_codegen_split_count": "1",
}


def quick_options(version: str) -> dict[str, str]:
    """XLA's options that make this jaxlib compile quickly, by name.

    XLA ends a process that gives it an unknown one; the `FEWER` are known from jaxlib 0.8 on.
    """
    simpler = tuple(int(part) for part in version.split(".")[:2]) <= LAST_WITH_SIMPLER
    return FEWER | (SIMPLER if simpler else {})


def start_quickly() -> None:
    """Has this process and its children compile with `quick_options`, but for those that are set.

    Called before jax is imported; later it does nothing.
    """
    if "jax" in sys.modules:
        return
    flags = os.environ.get("XLA_FLAGS", "").split()
    named = {flag.lstrip("-").partition("=")[0] for flag in flags}
    options = quick_options(metadata.version("jaxlib")).items()
    flags += [f"--{name}={value}" for name, value in options if name not in named]
    os.environ["XLA_FLAGS"] = " ".join(flags)


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
