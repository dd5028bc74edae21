"""How a test's programs are compiled: as they ship, or quickly, where no number depends on it."""

import functools
import os

NO_EMITTERS = "xla_cpu_use_fusion_emitters"
# The same for a process of its own.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": f"--{NO_EMITTERS}=false"}


def compile_quickly(quickly: bool) -> None:
    """Programs compiled from now on are optimised little, by the simplest of XLA's generators.

    That takes half the time. jax has a flag for the first, but none for the second that could be
    set again, hence the look behind its curtain.
    """
    import jax
    from jax._src import compiler

    jax.config.update("jax_disable_most_optimizations", quickly)
    options = compiler.get_compile_options
    as_shipped = getattr(options, "__wrapped__", options)

    @functools.wraps(as_shipped)
    def without_emitters(*args, env_options_overrides=None, **kwargs):
        overrides = {NO_EMITTERS: False} | (env_options_overrides or {})
        return as_shipped(*args, env_options_overrides=overrides, **kwargs)

    compiler.get_compile_options = without_emitters if quickly else as_shipped


def environment(*flags: str, quick: bool = False) -> dict[str, str]:
    """The variables of this process, and `flags` for XLA beside those that it has."""
    chosen = os.environ | (QUICK if quick else {})
    named = [os.environ.get("XLA_FLAGS"), QUICK["XLA_FLAGS"] if quick else None, *flags]
    return chosen | {"XLA_FLAGS": " ".join(filter(None, named))}
