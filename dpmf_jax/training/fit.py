"""The run loop on the host: chunks of jitted steps, with progress, checkpoints, the finite check
and the final release.

The number of steps is fixed up front; a chunk's edge is the only place where the host looks at
anything. Several processes (`hosts`) run it side by side, each with its own users' ratings; the
first one alone keeps a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import accounting
from accounting import gaussian as price_of
from accounting.guarantee import Guarantee
from dpmf_jax import layout, parts
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import hosts, keys
from dpmf_jax.errors import CannotWrite, DpmfError, PrivacyError, UsageError
from dpmf_jax.kernels import descent
from dpmf_jax.models import files as model_file
from dpmf_jax.models import storage
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Factors, Info, Mechanism, Phase, State, begin, factors, train
from dpmf_jax.training import checkpoint, interrupts


class Diverged(DpmfError, FloatingPointError):
    """Training left the finite numbers, or ended where any constant of the declared range predicts
    better.
    """


def diverged(rmse_train: float, rating_range: tuple[float, float]) -> bool:
    """Whether a model errs more on the ratings it was trained on than any constant of their
    declared range can.

    On every rating a constant of the range errs by at most the range's width, so its RMSE is at
    most that.
    """
    low, high = rating_range
    return rmse_train > high - low


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the state was saved. `folder` is the run to resume, or None where nothing is
    kept.
    """

    def __init__(self, step: int, num_steps: int, folder: Path | None):
        super().__init__(f"interrupted after {step} of {num_steps} steps")
        self.step, self.num_steps, self.folder = step, num_steps, folder


class Progress(NamedTuple):
    """Where a run stands. rmse: the training RMSE before the last of `step` steps (unpriced, for
    the curator);
    epsilon: what the steps so far cost.
    """

    step: int
    num_steps: int
    rmse: float
    epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """What a resumed run must agree with; kept in private/run.json."""

    settings: Mapping[str, Any]
    guarantee: Mapping[str, Any]
    mechanism: str
    ratings: str
    steps: int
    seed: int | None
    patience: int | None

    def refuse_changes(self, saved: Mapping[str, Any], where: str) -> None:
        now = dataclasses.asdict(self)
        for name in now:
            if json.loads(json.dumps(now[name])) != saved.get(name):
                detail = _first_difference(now[name], saved.get(name))
                raise PrivacyError(
                    f"the run was started with another {name}{detail}",
                    where=where,
                    fix=(
                        "resume with the settings and the ratings it was started with, or start a"
                        " new run"
                    ),
                )


def _first_difference(now: Any, saved: Any) -> str:
    if isinstance(now, Mapping) and isinstance(saved, Mapping):
        for name in sorted({*now, *saved}):
            if json.loads(json.dumps(now.get(name))) != saved.get(name):
                return f": {name} was {saved.get(name)}, now {now.get(name)}"
    return "" if isinstance(now, str) else f": it was {saved}, now {now}"


def _fingerprint(tree: Any) -> str:
    """SHA-256 of a pytree's structure and leaves: two mechanisms with equal settings agree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _ratings_digest(ratings: Ratings) -> str:
    """Of the ratings of all processes: the same in whatever order and by whatever number of
    processes they are held.
    """
    place = ratings.user.astype(np.uint64) * np.uint64(ratings.num_items) + ratings.item.astype(
        np.uint64
    )
    value = ratings.value.view(np.uint32).astype(np.uint64)
    sums = [
        len(ratings),
        *(int(np.sum(_mixed(_mixed(place + np.uint64(salt)) + value))) for salt in (0, 1 << 62)),
    ]
    whole = hosts.total(np.array(sums, np.uint64)).tolist()
    text = json.dumps([ratings.num_users, ratings.num_items, *ratings.rating_range, *whole])
    return hashlib.sha256(text.encode()).hexdigest()


def _mixed(words: np.ndarray) -> np.ndarray:
    """uint64, scrambled by the finaliser of SplitMix64."""
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(multiplier)
    return words ^ (words >> np.uint64(31))


def default_chunk_steps(num_ratings: int) -> int:
    """Steps between two looks of the host: about 25 million rated pairs, from 1 to 100 steps."""
    return max(1, min(100, 25_000_000 // max(num_ratings, 1)))


def stopping_step(rmse: Sequence[float], patience: int | None) -> int | None:
    """The first step with `patience` steps behind it that brought no new minimum; None where there
    is none.
    """
    if patience is None:
        return None
    best = 0
    for step, value in enumerate(rmse):
        if value < rmse[best]:
            best = step
        elif step - best >= patience:
            return step
    return None


def _priced(phases: Sequence[Phase], *, seeded: bool, patience: int | None) -> Guarantee:
    guarantee = accounting.compose(
        *(mechanism.guarantee(num_steps) for mechanism, num_steps in phases)
    )
    guarantee = guarantee.with_seed(seeded)
    if patience is None or guarantee.status == "none":
        return guarantee
    early = (
        f"stopping early (patience {patience}) looks at the training RMSE, which is not priced: not"
        " private"
    )
    stated = guarantee.accountants.get(
        "closed_form", guarantee.epsilon
    )  # what a claim is stated in
    return dataclasses.replace(
        guarantee,
        epsilon=max(guarantee.epsilon, price_of.round_up(stated)),
        status="claimed",
        assumptions=(
            *guarantee.assumptions,
            "the stopping step is the same in both worlds; it depends on the ratings",
        ),
        not_covered=(early, *guarantee.not_covered),
    )


def _spent(phases: Sequence[Phase], guarantee: Guarantee, done: int) -> float:
    """ε after `done` steps of the last phase, by the accountant that the guarantee is stated in."""
    *earlier, (mechanism, num_steps) = phases
    if guarantee.rho is None:
        return accounting.compose(
            *(phase.guarantee(steps) for phase, steps in (*earlier, (mechanism, done)))
        ).epsilon
    earlier_rho = sum(phase.guarantee(steps).rho or 0.0 for phase, steps in earlier)
    price = (
        price_of.epsilon_closed_form if guarantee.status == "claimed" else price_of.epsilon_exact
    )
    return price(earlier_rho + (guarantee.rho - earlier_rho) * done / num_steps, guarantee.delta)


_mean_squared_error = jax.jit(descent.mean_squared_error)


def fit(
    ratings: Ratings,
    mechanism: Mechanism,
    *,
    num_steps: int,
    earlier: Sequence[Phase] = (),
    seed: int | None = None,
    test: Ratings | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    command: Mapping[str, Any] | None = None,
    patience: int | None = None,
    controls: Sequence[str] = (),
    layout_kind: str = "auto",
    num_devices: int | None = None,
    chunk_steps: int | None = None,
    checkpoint_seconds: float = 5.0,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Model:
    """Train `mechanism` on `ratings` for `num_steps` steps and release what it releases.

    Args:
      ratings: what is trained on. test: held-out ratings of the same catalogue, for the RMSE beside
        it. Of several processes each gives those of its own users, over the catalogue of all, and
        everything else alike.
      earlier: phases that run before, (mechanism, number of steps) each, such as noisy item means
        to centre by. They are part of the price; what they make public, `mechanism` starts from.
      seed: an experiment with this seed, marked "do not release"; None is a release: the key comes
        from the operating system and is stored nowhere.
      out: folder of the run and of the model; None keeps everything in memory. It must be new, or
        hold a run to resume.
      resume: go on from the newest checkpoint in `out`. An experiment continues to the same bytes
        as an uninterrupted run (on a GPU see `protocol.train`). A release draws a fresh key for the
        remaining steps. Where a curator holds the ratings, nobody saw the steps after that
        checkpoint, so steps and price stay what they were. Where the guarantee says
        `rounds_are_seen`, somebody did: a release that lost such a round is refused.
      settings: JSON values that describe the run; kept in model.json, so public.
      command: JSON values kept in private/run.json for whoever resumes the run; not compared.
      patience: stop after this many steps without a new minimum of the training RMSE. Not private,
        and refused for a release whose `rounds_are_seen`: some are run that are not in the model.
      controls: names of non-private baselines to put beside the RMSE (`dpmf_jax.controls`).
      layout_kind, num_devices: see `layout.make`.
      chunk_steps: steps between two looks of the host; any number gives the same bytes (on a GPU
        see `protocol.train`).
      checkpoint_seconds: least time between two checkpoints.
      report: called with a Progress after every chunk.

    Returns: a Model with raw ids, its guarantee, and the curator's private part; of several
      processes without the record of who rated what, which none of them holds. One that ended in
      finite numbers and is of no use says so in `metrics["diverged"]`: it is paid for, so it is
      kept.

    Raises:
      UsageError: num_steps below 1, a part of a mechanism that is not of the protocol's shape, an
      `out` that is in use, or a state with no model in it. PrivacyError: a resume with other
      settings or ratings, or one that would answer a round a second time.
      DataError: a resume of a finished model whose model.json is lost. CannotWrite: a full disk;
      what was saved stays, and `resume` goes on from there. Diverged: the loss is no longer finite.
      Interrupted: Ctrl-C; the last completed chunk is saved. hosts.Lost: another process is gone;
      the last completed chunk is saved.
    """
    if num_steps < 1:
        raise UsageError(
            f"the number of steps must be at least 1; got {num_steps}", fix="set --steps"
        )
    if patience is not None and patience < 1:
        raise UsageError(
            f"patience must be at least 1 step; got {patience}",
            fix="set --patience, or leave it out",
        )
    earlier = [(parts.as_pytree(phase), steps) for phase, steps in earlier]
    mechanism = parts.as_pytree(mechanism)
    phases = (*earlier, (mechanism, num_steps))
    parts.check_prices(phases)
    guarantee = _priced(phases, seeded=seed is not None, patience=patience)
    seen = (
        guarantee.rounds_are_seen and seed is None
    )  # an experiment repeats the same noise, and shows nothing new
    if seen and patience is not None:
        raise PrivacyError(
            "stopping by patience throws away rounds that others have seen, unpaid",
            where=f"patience {patience}, with {guarantee.mechanism}",
            fix="leave out --patience, or give --seed for an experiment",
        )
    low, high = ratings.rating_range
    if guarantee.largest_change is not None and guarantee.largest_change < high - low:
        raise PrivacyError(
            f"the noise is made for a change of {guarantee.largest_change:g}, a rating may change"
            f" by {high - low:g}",
            where="the declared range of the ratings, against the mechanism's",
            fix="make the mechanism with the rating_range of the ratings",
        )
    data = layout.make(ratings, kind=layout_kind, num_devices=num_devices)
    parts.check(phases, data, densities=False, begun=lambda state: _whole(state, ratings))
    if seed is None:
        init_key, train_key = keys.from_operating_system(), keys.from_operating_system()
    else:
        init_key, train_key = jax.random.split(keys.from_seed(seed))
    program = mechanism
    if hosts.count() > 1:
        program, init_key, train_key = layout.replicate(data, (mechanism, init_key, train_key))
        earlier = [(layout.replicate(data, phase), steps) for phase, steps in earlier]
    with hosts.watched("before the first step"):
        state = begin(program, init_key, data, earlier)
    run = _Run(
        settings=dict(settings or {}),
        guarantee=guarantee.to_dict(),
        mechanism=_fingerprint([phase for phase, _ in phases] if earlier else mechanism),
        ratings=_ratings_digest(ratings),
        steps=num_steps,
        seed=seed,
        patience=patience,
    )
    journal = _Journal(None, checkpoint_seconds)
    with hosts.together():
        if hosts.first():
            folder = None if out is None else Path(out)
            every = 0.0 if seen else checkpoint_seconds
            journal = _Journal.open(folder, run, command=command, resume=resume, every=every)
            if seen and resume:
                journal.refuse_second_answers(
                    state, earlier, lambda steps: _spent(phases, guarantee, steps)
                )
            state = journal.restore(state)
            journal.refuse_second_release(state, num_steps, seeded=seed is not None)
    if resume and hosts.count() > 1:
        state = hosts.from_first(jax.tree.map(np.asarray, state))
        journal.rmse = hosts.result_of_first(lambda: journal.rmse)
    state = layout.replicate(data, state)

    seconds_per_step: list[float] = []  # but for the first chunk of each length, which compiles
    compiled: set[int] = set()
    chunk = chunk_steps or min(default_chunk_steps(data.num_ratings), -(-num_steps // 4))
    try:
        while int(state.step) < num_steps:
            done = int(state.step)
            length = min(chunk, num_steps - done)
            with interrupts.held_back():  # what was computed is kept
                if seen:
                    journal.begin(done + length)
                started = time.perf_counter()
                with hosts.watched(f"after {done} of {num_steps} steps"):
                    ahead, info = train(program, train_key, state, data, num_steps=length)
                    if (
                        hosts.count() > 1
                    ):  # what a step leaves cut over the processes, none of them could read
                        ahead, info = layout.replicate(data, (ahead, info))
                    rmse = _finite_rmse(info, done)
                if length in compiled:
                    seconds_per_step.append((time.perf_counter() - started) / length)
                compiled.add(length)
                stop = stopping_step([*journal.rmse, *rmse], patience)
                if stop is not None:
                    num_steps, length = stop, stop - done
                    ahead, _ = (
                        train(program, train_key, state, data, num_steps=length)
                        if length
                        else (state, None)
                    )
                state = ahead
                journal.write(
                    state,
                    rmse[:length],
                    np.asarray(info.clipped_fraction)[:length],
                    last=stop is not None,
                )
            report(
                Progress(
                    done + length,
                    num_steps,
                    float(rmse[-1]),
                    _spent(phases, guarantee, done + length),
                )
            )
        whole = Factors(*map(np.asarray, _whole(state, ratings)))
        with hosts.watched("after the last step"):
            metrics = _measure(whole, data, ratings, test, controls, layout_kind)
    except KeyboardInterrupt:
        journal.save(state)
        raise Interrupted(int(state.step), num_steps, journal.folder) from None
    except hosts.Lost:
        journal.save(state)
        raise

    if patience is not None:
        phases = (*phases[:-1], (mechanism, max(num_steps, 1)))
        guarantee = _priced(phases, seeded=seed is not None, patience=patience)
    metrics |= {
        "steps": num_steps,
        "seconds_per_step": float(np.median(seconds_per_step)) if seconds_per_step else None,
        "device": f"{data.num_devices} x {jax.devices()[0].device_kind}",
        "layout": layout.describe(data),
    }
    model = Model(
        release=jax.tree.map(np.asarray, mechanism.release(state)),
        guarantee=guarantee,
        users=ratings.users,
        items=ratings.items,
        rating_range=ratings.rating_range,
        settings=dict(settings or {}),
        factors=whole,
        seen=(ratings.user, ratings.item) if hosts.count() == 1 else None,
        metrics=metrics,
    )
    if out is None or not hosts.first():
        return model
    journal.save(state)
    model = model.save(Path(out))
    journal.close()
    return model


def _whole(state: State, ratings: Ratings) -> Factors:
    """The curator's model; one that has no factors, only a center, gets factors of zeros.

    Raises: UsageError where something is missing that a prediction needs.
    """
    known = factors(state)
    if known.user_factors is None and known.item_factors is None:
        users, items = (
            np.zeros((num, 1), np.float32) for num in (ratings.num_users, ratings.num_items)
        )
        known = known._replace(user_factors=users, item_factors=items)
    if missing := [name for name, part in known._asdict().items() if part is None]:
        raise UsageError(
            f"the mechanism's state has no {' and no '.join(missing)}, so its model predicts"
            " nothing",
            fix=(
                "name the fields of its public or private state as those of"
                " dpmf_jax.protocol.Factors"
            ),
        )
    return known


def _finite_rmse(info: Info, done: int) -> np.ndarray:
    """float64[steps]: the training RMSE before each step; raises Diverged with the first step that
    is not finite.
    """
    loss = np.asarray(info.loss, np.float64)
    bad = np.flatnonzero(~np.isfinite(loss))
    if len(bad):
        raise Diverged(
            f"diverged at step {done + int(bad[0])}: the loss is no longer finite",
            where="the training loss, looked at after every chunk of steps",
            fix=(
                "lower learning_rate (--learning-rate), or add noise less strongly (a larger ε,"
                " fewer steps)"
            ),
        )
    return np.sqrt(loss)


def _measure(
    whole: Factors,
    data: Any,
    ratings: Ratings,
    test: Ratings | None,
    controls: Sequence[str],
    layout_kind: str,
) -> dict[str, Any]:
    """The unpriced numbers of the curator: RMSE on both sides, and the baselines with their NDCG
    beside it.
    """
    from dpmf_jax.models import metrics
    from dpmf_jax.training import controls as baselines

    rmse_train = math.sqrt(float(_mean_squared_error(*layout.replicate(data, whole), data)))
    if not math.isfinite(rmse_train):
        raise Diverged("diverged in the last step", fix="lower learning_rate (--learning-rate)")
    rmse_test = ndcg = None
    if test is not None and hosts.total(test.num_ratings):
        rmse_test = metrics.rmse(whole, test)
        if controls:
            ndcg = baselines.ndcg(whole, *metrics.to_rank(ratings, test))
    kind = layout_kind if layout_kind == "stream" else "auto"
    compared = (
        baselines.controls(ratings, test, names=tuple(controls), layout_kind=kind)
        if controls
        else {}
    )
    return {
        "rmse_train": rmse_train,
        "rmse_test": rmse_test,
        "ndcg_at_10": ndcg,
        "ranks_alike": metrics.ranks_alike(whole),
        "diverged": diverged(rmse_train, ratings.rating_range),
        "controls": compared,
    }


class _Journal:
    """Checkpoints and metrics of one run under `folder`/private; does nothing where folder is
    None.
    """

    def __init__(self, folder: Path | None, every: float):
        self.folder, self.every = folder, every
        self.rmse: list[float] = []
        self._saved_at = time.monotonic()

    @classmethod
    def open(
        cls,
        folder: Path | None,
        run: _Run,
        *,
        command: Mapping[str, Any] | None,
        resume: bool,
        every: float,
    ) -> _Journal:
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
            model_file.refuse_lost(folder)
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
        there = folder.exists()
        try:
            storage.private_folder(folder)
            storage.write_json(
                saved, dataclasses.asdict(run) | {"command": dict(command or {})}, private=True
            )
        except CannotWrite:
            for made in (folder / "private", *([] if there else [folder])):
                with contextlib.suppress(OSError):
                    made.rmdir()  # or it would be in the way of the next run
            raise
        return cls(folder, every)

    @property
    def private(self) -> Path | None:
        return None if self.folder is None else self.folder / "private"

    @property
    def _metrics(self) -> Path:
        assert self.private is not None
        return self.private / "metrics.jsonl"

    @property
    def _begun(self) -> Path:
        assert self.private is not None
        return self.private / "begun.json"

    def _kept(self, fresh: State) -> tuple[State | None, list[bytes]]:
        """The newest checkpointed state that has all of its metrics, and these, line by line."""
        assert self.private is not None
        state = checkpoint.latest(self.private, fresh)
        if state is None or not self._metrics.exists():
            return state, []
        lines = self._metrics.read_bytes().splitlines(keepends=True)[: int(state.step)]
        if len(lines) < int(
            state.step
        ):  # the metrics were not flushed: start over rather than leave a gap
            return None, []
        return state, lines

    def begin(self, step: int) -> None:
        """Writes down, before they are run, that the steps up to this one are."""
        if self.private is not None:
            storage.write_json(self._begun, {"steps": step}, private=True)

    def refuse_second_answers(
        self, fresh: State, earlier: Sequence[Phase], spent: Callable[[int], float]
    ) -> None:
        """Stop where a round was begun, so others have seen its response, and no state after it is
        left.

        earlier: phases before the training, which a resume runs again.
        """
        begun = int(storage.read_json(self._begun)["steps"]) if self._begun.exists() else 0
        state, _ = self._kept(fresh)
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
        state, lines = self._kept(fresh)
        self.rmse = [json.loads(line)["rmse_train"] for line in lines]
        storage.write_bytes(self._metrics, b"".join(lines), private=True)
        return fresh if state is None else state

    def refuse_second_release(self, state: State, num_steps: int, *, seeded: bool) -> None:
        """Stop where a release stands already and its state does not: another one would be a second
        release.
        """
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
        """Append one line a step to the metrics, and checkpoint when the last one is some seconds
        old.
        """
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
            os.fsync(
                file.fileno()
            )  # a state is checkpointed after its metrics, so a restored one has all of them
        if last or time.monotonic() - self._saved_at >= self.every:
            self.save(state)

    def save(self, state: State) -> None:
        if self.private is not None:
            checkpoint.save(self.private, state)
            self._saved_at = time.monotonic()

    def close(self) -> None:
        if self.private is not None:
            checkpoint.clear(self.private)
            self._begun.unlink(missing_ok=True)
