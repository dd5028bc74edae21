"""A Python script in a process of its own, with as many CPU devices as it needs."""

import os
import subprocess
import sys
import textwrap

# For a program whose tolerances hold whatever the compiler does.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def python(
    code: str, *arguments: str, devices: int = 1, timeout: float = 300, quick: bool = False
) -> subprocess.CompletedProcess[str]:
    """The finished process, which ran `code` with `arguments` and ended well.

    The script finds this checkout, whatever folder it starts in (`conftest` says so to all that
    tests start). jax sees `devices` CPU devices in it, and no other. quick: `QUICK`.
    """
    count = f"--xla_force_host_platform_device_count={devices}"
    flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), count]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"} | (QUICK if quick else {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done
