"""How a test's programs are compiled: as they ship, or quickly, where no number depends on it."""

import functools
import os

import jaxlib

from experiments.audit.compilation import SIMPLER as FLAG
from experiments.audit.compilation import has_simpler

# XLA's simpler generator, as an option of one program, where this jaxlib has it.
SIMPLER = {"xla_cpu_use_fusion_emitters": False} if has_simpler(jaxlib.__version__) else {}
# The same for a process of its own.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": FLAG if SIMPLER else ""}


def compile_quickly(quickly: bool) -> None:
    """Programs compiled from now on are optimised little.

    jax has a flag for that, but for the generator none that could be set again, hence the look
    behind its curtain.
    """
    import jax
    from jax._src import compiler

    jax.config.update("jax_disable_most_optimizations", quickly)
    options = compiler.get_compile_options
    as_shipped = getattr(options, "__wrapped__", options)

    @functools.wraps(as_shipped)
    def simpler(*args, env_options_overrides=None, **kwargs):
        overrides = SIMPLER | (env_options_overrides or {})
        return as_shipped(*args, env_options_overrides=overrides, **kwargs)

    compiler.get_compile_options = simpler if quickly and SIMPLER else as_shipped


def environment(*flags: str, quick: bool = False) -> dict[str, str]:
    """The variables of this process, and `flags` for XLA beside those that it has."""
    chosen = os.environ | (QUICK if quick else {})
    named = [os.environ.get("XLA_FLAGS"), QUICK["XLA_FLAGS"] if quick else None, *flags]
    return chosen | {"XLA_FLAGS": " ".join(filter(None, named))}
