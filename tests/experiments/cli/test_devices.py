"""Devices are made before jax starts, or refused."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [("3", ""), ("None", ""), ("None", "--xla_force_host_platform_device_count=1")],
)
def test_devices_are_made_before_jax_starts(wanted, flags):
    code = f"""
from experiments.cli import devices
count = devices.use({wanted})
import jax
print(count, jax.local_device_count(), jax.default_backend(), devices.cores())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    count, there, backend, cores = done.stdout.split()
    expected = 1 if flags else int(wanted) if wanted != "None" else min(int(cores), 16)
    assert (int(count), int(there), backend) == (expected, expected, "cpu")


def test_too_late_for_devices_is_an_environment_precondition():
    code = """
import jax
jax.local_devices()
from dpmf_jax.errors import PrivacyError, UsageError
from experiments.cli import devices
assert devices.use(1) == devices.use() == 1
for wanted, error in ((2, PrivacyError), (0, UsageError)):
    try:
        devices.use(wanted)
    except error as caught:
        print(caught.what)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "2 devices asked for, jax has already started with 1",
        "0 devices",
    ]
