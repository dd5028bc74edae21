"""`--quick` compiles quickly, and only where this jaxlib can."""

import json
import os

import jaxlib
import pytest

from experiments.audit import compilation
from tests.cases.processes import python


def test_who_has_the_simpler_generator():
    options = [compilation.quick_options(one) for one in ("0.8.0", "0.10.2", "0.11.0", "1.0")]
    assert all(compilation.FEWER.items() <= one.items() for one in options)
    assert ["xla_cpu_use_fusion_emitters" in one for one in options] == [True, True, False, False]


def test_where_jax_is_there_nothing_is_set(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    compilation.start_quickly()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"


@pytest.mark.seconds
def test_a_quick_audit_starts_so_and_keeps_the_flags_that_are_there():
    """jax compiles with the flags; one that this jaxlib did not know would end the process."""
    program = """
        import json, os, sys
        from experiments.audit import compilation
        os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=2"
        compilation.start_quickly()
        compilation.start_quickly()
        import jax
        jax.jit(lambda x: x + 1)(1.0)
        with compilation.compiling(quickly=True):
            within = jax.config.read("jax_disable_most_optimizations")
        after = jax.config.read("jax_disable_most_optimizations")
        print(json.dumps([os.environ["XLA_FLAGS"].split(), within, after]))
    """
    flags, within, after = json.loads(python(program).stdout)
    options = compilation.quick_options(jaxlib.__version__)
    del options["xla_cpu_parallel_codegen_split_count"]
    assert flags == [
        "--xla_force_host_platform_device_count=1",
        "--xla_cpu_parallel_codegen_split_count=2",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    assert (within, after) == (True, False)
