"""``dpmf doctor``: what an installation consists of, its data, and a self-test."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from experiments.cli import console, devices, program_cache

CORE = (
    "dpmf-jax",
    "jax",
    "jaxlib",
    "jaxtyping",
    "optax",
    "numpy",
    "scipy",
    "dp-accounting",
    "tyro",
    "rich",
    "safetensors",
    "pyarrow",
)
EXTRAS = {
    "report": ("matplotlib", "jinja2"),
    "test": ("pytest", "pytest-xdist", "hypothesis", "chex", "beartype", "mpmath"),
    "lint": ("ruff", "ty"),
    "bench": ("torch", "numba", "implicit", "scikit-surprise"),
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """Print versions, devices, cores, data folder and optional extras, and run a small self-test.

    Exits with 4 if a part of the self-test fails."""

    data_dir: Path | None = None
    """Folder of the data sets. [the environment variable DPMF_DATA]"""
    devices: int | None = None
    """Number of devices. [all accelerators, or one per core]"""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Command) -> int:
    from experiments.cli import selftest

    count = devices.use(command.devices)
    result = describe(command.data_dir, count)
    console.say("running the self-test, a few seconds")
    result["self_test"] = [check._asdict() for check in selftest.run()]
    result["passed"] = all(check["passed"] for check in result["self_test"])
    console.emit(result, json=command.json, render=render)
    return 0 if result["passed"] else console.PRECONDITION


def describe(data_dir: Path | None, num_devices: int) -> dict[str, Any]:
    """The installation as plain values; versions that are not installed are None."""
    import jax

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "executable": sys.executable,
        "versions": {name: installed(name) for name in CORE},
        "extras": {
            extra: {name: installed(name) for name in names} for extra, names in EXTRAS.items()
        },
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
        "devices_used": num_devices,
        "cores": devices.cores(),
        "memory_gib": memory(),
        "data": data(data_dir),
        "programs": programs(),
    }


def installed(name: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def memory() -> float | None:
    """Memory of the machine in GiB, where the system tells."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def data(data_dir: Path | None) -> dict[str, Any]:
    """The folder of data sets, what named it, and the folders in it."""
    named = os.environ.get("DPMF_DATA")
    folder = data_dir or (Path(named).expanduser() if named else None)
    if folder is None:
        return {"folder": None, "named_by": None, "found": []}
    found = (
        sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else None
    )
    return {
        "folder": str(folder),
        "named_by": "--data-dir" if data_dir else "DPMF_DATA",
        "found": found,
    }


def programs() -> dict[str, Any]:
    """The folder where compiled programs are kept, or None, and their bytes."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return {"folder": folder, "bytes": program_cache.size(Path(folder)) if folder else 0}


def render(result: Mapping[str, Any]) -> str:
    """The report as lines of text."""
    used, there = result["devices_used"], result["devices"]
    rows = [
        ("python", f"{result['python']} on {result['platform']}"),
        ("", result["executable"]),
        *((name, number or "NOT INSTALLED") for name, number in result["versions"].items()),
        ("devices", f"{used} of {len(there)} used: {there[0]} ({result['backend']})"),
        ("cores", f"{result['cores']}, {result['memory_gib']} GiB of memory"),
        ("data", _data_line(result["data"])),
        ("programs", _programs_line(result["programs"])),
        *(
            (f"extra {extra}", _extra_line(extra, names))
            for extra, names in result["extras"].items()
        ),
    ]
    lines = [f"{name:<15}{text}" for name, text in rows]
    lines += ["", "self-test"]
    lines += [
        f"  {'ok' if check['passed'] else 'FAILED':<8}{check['name']} ({check['detail']})"
        for check in result["self_test"]
    ]
    lines += [
        "",
        (
            "all is well"
            if result["passed"]
            else "something is broken: make the environment again (make clean, make demo)"
        ),
    ]
    return "\n".join(lines)


def _data_line(found: Mapping[str, Any]) -> str:
    if found["folder"] is None:
        return "no folder named; set DPMF_DATA or give --data-dir (generated ratings need none)"
    if found["found"] is None:
        return f"{found['folder']} ({found['named_by']}) is no folder"
    return f"{found['folder']} ({found['named_by']}): {', '.join(found['found']) or 'empty'}"


def _programs_line(found: Mapping[str, Any]) -> str:
    if found["folder"] is None:
        return (
            f"none are kept: {program_cache.default_folder()} cannot be made, or others can write"
            " to it"
        )
    return f"{found['folder']}: {found['bytes'] / 1e6:,.0f} MB of compiled programs, kept"


def _extra_line(extra: str, names: Mapping[str, str | None]) -> str:
    missing = [name for name, number in names.items() if number is None]
    if missing:
        return f"without {', '.join(missing)}: pip install 'dpmf-jax[{extra}]'"
    return ", ".join(f"{name} {number}" for name, number in names.items())
