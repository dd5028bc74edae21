"""`dpmf fit --resume`: the command of an interrupted run, read from its folder."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from dpmf_jax.errors import DataError, PrivacyError, UsageError
from experiments.cli import console
from experiments.fit.flags import DEFAULT, with_flags_of

# Flags of the process that resumes, not of the run.
PER_PROCESS = (
    *("resume", "json", "devices", "layout", "out"),
    *("coordinator", "processes", "process_id", "lost_after"),
)
PATHS = (
    *("items", "users", "item_features", "user_budgets"),
    *("data_dir", "catalogue_users", "catalogue_items"),
)


def original_command(command: Any, kind: type) -> Any:
    """The command of the interrupted run in the folder `command.resume`.

    Args:
      kind: the dataclass of `dpmf fit`, without the flags of a mechanism.

    Raises:
      PrivacyError: a flag that differs from the run's. UsageError: --distributed is missing.
      DataError: the folder holds no run that can go on.
    """
    from dpmf_jax.devices import hosts
    from dpmf_jax.models import files as model_file
    from dpmf_jax.models import storage

    where = command.resume / "private" / "run.json"
    if command.resume.is_file():
        raise DataError(
            "there is no such run",
            where=str(command.resume),
            fix="give the folder that --out named",
        )
    model_file.refuse_lost(command.resume)
    saved = hosts.result_of_first(lambda: storage.read_json(where)).get("command", {})
    mechanism = saved.get("mechanism", DEFAULT)
    if command.mechanism not in (DEFAULT, mechanism):
        raise _other("mechanism", mechanism, command.mechanism, where)
    fields: dict[str, Any] = {"mechanism": mechanism}
    joined = with_flags_of(kind, mechanism)
    for field in dataclasses.fields(joined):
        if field.name == "mechanism":
            continue
        given = getattr(command, field.name, field.default)
        if field.name in PER_PROCESS:
            fields[field.name] = given
            continue
        value = saved.get(field.name, field.default)
        if given != field.default and console.plain(given) != value:
            raise _other(field.name, value, given, where)
        if field.name in PATHS and value is not None:
            value = Path(value)
        fields[field.name] = tuple(value) if isinstance(value, list) else value
    if saved.get("distributed", False) and not command.distributed:
        raise UsageError(
            "the run was started with --distributed, which holds out other ratings",
            where=str(where),
            fix="add --distributed; --processes 1 where one process is enough",
        )
    return joined(**fields)


def _other(name: str, was: Any, now: Any, where: Path) -> PrivacyError:
    return PrivacyError(
        f"--{name.replace('_', '-')} was {was} when the run was started, now {now}",
        where=str(where),
        fix="resume without this flag, or start a new run",
    )


def resuming_command(command: Any, folder: Path) -> str:
    """The command line that goes on with the run in a folder."""
    several = ["--distributed", "--processes", "1"] if command.distributed else []
    return shlex.join(["dpmf", "fit", "--resume", str(folder), *several])
