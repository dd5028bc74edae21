"""The folder of a run while it runs: what was started, metrics by step, checkpoints.

All of it lies under the folder's `private/`. `run.json` says what was started, `metrics.jsonl` has
one line a step, `checkpoints/` the newest states, and `begun.json` the rounds that others may have
seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.errors import CannotWrite, PrivacyError, UsageError
from dpmf_jax.models import files as model_files
from dpmf_jax.models import storage
from dpmf_jax.protocol import Phase, State
from dpmf_jax.training import checkpoint
from dpmf_jax.training.identity import Identity

_LOG = logging.getLogger("dpmf_jax")


class Journal:
    """Checkpoints and metrics of one run, in its folder; keeps nothing on disk without one.

    Attributes:
      folder: of the run; None where nothing is written.
      every: seconds, the least time between two checkpoints.
      rmse: the training RMSE before each step so far.
    """

    def __init__(self, folder: Path | None, every: float):
        self.folder, self.every = folder, every
        self.rmse: list[float] = []
        self._saved_at = time.monotonic()

    @classmethod
    def open(
        cls,
        folder: Path | None,
        run: Identity,
        *,
        command: Mapping[str, Any] | None,
        resume: bool,
        every: float,
    ) -> Journal:
        """The journal of a new run, or of the one to resume.

        Raises: UsageError for a folder in use, a file in its place, a complete run, or nothing to
          resume; PrivacyError where the run to resume is another; DataError for a finished model
          whose model.json is lost; CannotWrite, after which nothing is left behind.
        """
        if folder is None:
            if resume:
                raise UsageError(
                    "there is no folder to resume from", fix="give out, the folder of the run"
                )
            return cls(None, every)
        saved = folder / "private" / "run.json"
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                "this is a file, not a folder",
                where=str(folder),
                fix="give --out the name of a folder",
            )
        if resume:
            model_files.refuse_lost(folder)
            run.refuse_changes(storage.read_json(saved), where=str(saved))
            if (folder / "model.json").exists():
                raise UsageError(
                    "the run is complete already",
                    where=str(folder),
                    fix="load it, or start a new run",
                )
            storage.remove_partials(folder)
            return cls(folder, every)
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(
                "the folder is not empty, and a run never overwrites",
                where=str(folder),
                fix="choose a new --out",
            )
        existed = folder.exists()
        try:
            storage.private_folder(folder)
            storage.write_json(
                saved, dataclasses.asdict(run) | {"command": dict(command or {})}, private=True
            )
        except CannotWrite:
            # An empty folder would be in the way of the next run.
            for empty in (folder / "private", *([] if existed else [folder])):
                with contextlib.suppress(OSError):
                    empty.rmdir()
            raise
        return cls(folder, every)

    @property
    def private(self) -> Path | None:
        """The folder of what only the curator may read."""
        return None if self.folder is None else self.folder / "private"

    @property
    def _metrics(self) -> Path:
        assert self.private is not None
        return self.private / "metrics.jsonl"

    @property
    def _begun(self) -> Path:
        assert self.private is not None
        return self.private / "begun.json"

    def _newest(self, fresh: State) -> tuple[State | None, list[bytes]]:
        """The newest checkpointed state that has all of its metrics, and these, line by line."""
        assert self.private is not None
        state = checkpoint.latest(self.private, fresh)
        if state is None or not self._metrics.exists():
            return state, []
        lines = self._metrics.read_bytes().splitlines(keepends=True)[: int(state.step)]
        if len(lines) < int(state.step):
            return None, []  # the metrics were not flushed: start over rather than leave a gap
        return state, lines

    def begin(self, step: int) -> None:
        """Write down, before they run, that the steps up to this one do."""
        if self.private is not None:
            storage.write_json(self._begun, {"steps": step}, private=True)

    def refuse_second_answers(
        self, fresh: State, earlier: Sequence[Phase], spent: Callable[[int], float]
    ) -> None:
        """Raise PrivacyError where a round was begun and no state after it is left.

        Others have seen that round's response, so going on would answer it a second time.

        earlier: phases before the training, which a resume runs again.
        spent: number of steps -> ε.
        """
        begun = int(storage.read_json(self._begun)["steps"]) if self._begun.exists() else 0
        state, _ = self._newest(fresh)
        done = 0 if state is None else int(state.step)
        again = [phase for phase, steps in earlier if phase.guarantee(steps).rounds_are_seen]
        if begun <= done and not again:
            return
        which = "an earlier phase" if again else f"rounds {done + 1} to {begun}"
        raise PrivacyError(
            f"the answers of {which} were seen and the state after them is lost: going on would"
            " answer a second time",
            where=str(self._begun),
            fix=f"start a new run, and count what this one spent beside it: ε = {spent(begun):.4f}",
        )

    def restore(self, fresh: State) -> State:
        """The newest checkpointed state, or the fresh one; the metrics are cut back to it."""
        if self.private is None:
            return fresh
        state, lines = self._newest(fresh)
        if state is None and self._metrics.exists() and self._metrics.stat().st_size:
            _LOG.warning("%s has no checkpoint that can be read: it starts again", self.folder)
        self.rmse = [json.loads(line)["rmse_train"] for line in lines]
        storage.write_bytes(self._metrics, b"".join(lines), private=True)
        return fresh if state is None else state

    def refuse_second_release(self, state: State, num_steps: int, *, seeded: bool) -> None:
        """Raise PrivacyError where a release is written and the state it came from is lost."""
        if self.folder is None or seeded or int(state.step) == num_steps:
            return
        if (self.folder / "release.safetensors").exists():
            raise PrivacyError(
                "this run wrote its release, and the state it came from is lost: going on would"
                " release twice",
                where=str(self.folder / "release.safetensors"),
                fix="start a new run, and count this one's price as spent",
            )

    def write(self, state: State, rmse: np.ndarray, clipped: np.ndarray, *, last: bool) -> None:
        """Append a line of metrics for each step; checkpoint if the last one is `every` s old."""
        start = len(self.rmse)
        self.rmse.extend(map(float, rmse))
        if self.private is None:
            return
        with storage.writing(self._metrics), self._metrics.open("a") as file:
            for offset, (value, fraction) in enumerate(zip(rmse, clipped, strict=True)):
                line = {
                    "step": start + offset,
                    "rmse_train": float(value),
                    "clipped_fraction": float(fraction),
                }
                file.write(json.dumps(line) + "\n")
            file.flush()
            # A state is checkpointed after its metrics, so a restored one has all of them.
            os.fsync(file.fileno())
        if last or time.monotonic() - self._saved_at >= self.every:
            self.save(state)

    def save(self, state: State) -> None:
        """Checkpoint the state."""
        if self.private is not None:
            checkpoint.save(self.private, state)
            self._saved_at = time.monotonic()

    def close(self) -> None:
        """Remove the checkpoints: the run is complete."""
        if self.private is not None:
            checkpoint.clear(self.private)
            self._begun.unlink(missing_ok=True)
