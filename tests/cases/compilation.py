"""How a test's programs are compiled: as they ship, or quickly, where no number depends on it."""

import functools
import os

import jaxlib

from experiments.audit.compilation import quick_options

OPTIONS = quick_options(jaxlib.__version__)
# The same for a process of its own.
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in OPTIONS.items()),
}
# As options of one program, which have types.
OF_ONE = {
    name: {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    for name, value in OPTIONS.items()
}


def compile_quickly(quickly: bool) -> None:
    """Programs compiled from now on are optimised little.

    jax has a flag for that, but for XLA's options none that could be set again, hence the look
    behind its curtain.
    """
    import jax
    from jax._src import compiler

    jax.config.update("jax_disable_most_optimizations", quickly)
    options = compiler.get_compile_options
    as_shipped = getattr(options, "__wrapped__", options)

    @functools.wraps(as_shipped)
    def quick(*args, env_options_overrides=None, **kwargs):
        overrides = OF_ONE | (env_options_overrides or {})
        return as_shipped(*args, env_options_overrides=overrides, **kwargs)

    compiler.get_compile_options = quick if quickly else as_shipped


def environment(*flags: str, quick: bool = False) -> dict[str, str]:
    """The variables of this process, and `flags` for XLA beside those that it has."""
    chosen = os.environ | (QUICK if quick else {})
    named = [os.environ.get("XLA_FLAGS"), QUICK["XLA_FLAGS"] if quick else None, *flags]
    return chosen | {"XLA_FLAGS": " ".join(filter(None, named))}
