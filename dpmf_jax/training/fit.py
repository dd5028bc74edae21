"""The run loop on the host: chunks of jitted steps, with progress, checkpoints and the release.

The number of steps is fixed up front. The host looks at nothing but at the edges of chunks, where
it checks that the loss is finite. Several processes (`hosts`) run the loop side by side, each with
its own users' ratings; the first one alone keeps a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from accounting.guarantee import Guarantee
from dpmf_jax import layout, parts
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.devices import hosts, programs
from dpmf_jax.errors import PrivacyError, UsageError
from dpmf_jax.models.model import Model
from dpmf_jax.noise import keys
from dpmf_jax.protocol import Factors, Info, Key, Mechanism, Phase, State, begin, train
from dpmf_jax.training import interrupts, price
from dpmf_jax.training.identity import Identity, fingerprint, ratings_digest
from dpmf_jax.training.journal import Journal
from dpmf_jax.training.measure import Diverged, curator_model, measure, trained


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the state was saved.

    Attributes:
      step: of the saved state.
      num_steps: of the whole run.
      folder: of the run to resume; None where nothing is kept.
    """

    def __init__(self, step: int, num_steps: int, folder: Path | None):
        super().__init__(f"interrupted after {step} of {num_steps} steps")
        self.step, self.num_steps, self.folder = step, num_steps, folder


class Progress(NamedTuple):
    """Where a run stands.

    step: steps done.
    num_steps: of the whole run.
    rmse: the training RMSE before the last of these steps; unpriced, for the curator.
    epsilon: what the steps so far cost.
    """

    step: int
    num_steps: int
    rmse: float
    epsilon: float


def default_chunk_steps(num_ratings: int) -> int:
    """Steps between two looks of the host: about 25 million rated pairs, from 1 to 100 steps."""
    return max(1, min(100, 25_000_000 // max(num_ratings, 1)))


def stopping_step(rmse: Sequence[float], patience: int | None) -> int | None:
    """The first step after which `patience` steps brought no new minimum; None without one."""
    if patience is None:
        return None
    best = 0
    for step, value in enumerate(rmse):
        if value < rmse[best]:
            best = step
        elif step - best >= patience:
            return step
    return None


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
    compare: Mapping[str, tuple[Sequence[Phase], bool]] | None = None,
    layout_kind: str = "auto",
    num_devices: int | None = None,
    chunk_steps: int | None = None,
    checkpoint_seconds: float = 5.0,
    report: Callable[[Progress], None] = lambda progress: None,
    judge: Callable[[Model], Mapping[str, Any]] | None = None,
) -> Model:
    """Train `mechanism` on `ratings` for `num_steps` steps and release what it releases.

    Args:
      ratings: what is trained on. Each of several processes gives the ratings of its own users,
        over the catalogue of all; it gives everything else as the others do.
      num_steps: of `mechanism`; fixed up front.
      earlier: phases that run before, (mechanism, number of steps) each, such as noisy item means
        to centre by. They are part of the price. `mechanism` starts from what they make public.
      seed: of an experiment, which is marked "do not release". None is a release: its key comes
        from the operating system and is stored nowhere.
      test: held-out ratings of the same catalogue, for an RMSE of their own.
      out: folder of the run and of the model; None keeps everything in memory. It must be new, or
        hold a run to resume.
      resume: go on from the newest checkpoint in `out`. An experiment ends in the same bytes as an
        uninterrupted run (on a GPU see `protocol.train`). A release draws a fresh key for the
        remaining steps. Where a curator holds the ratings, nobody saw the steps after that
        checkpoint, so steps and price stay what they were. Where the guarantee says
        `rounds_are_seen`, somebody did: a release that lost such a round is refused.
      settings: JSON values that describe the run; kept in model.json, so public.
      command: JSON values for whoever resumes the run; kept in private/run.json, not compared.
      patience: stop after this many steps without a new minimum of the training RMSE. Not private.
        Refused for a release whose `rounds_are_seen`, which would throw paid rounds away.
      controls: names of the non-private baselines to compare with (`dpmf_jax.controls`).
      compare: with controls, further ones by name: phases to run on the same ratings, and whether a
        guarantee like this one's would cover them. They are measured and thrown away.
      layout_kind, num_devices: see `layout.make`.
      chunk_steps: steps between two looks of the host. Any number gives the same bytes (on a GPU
        see `protocol.train`).
      checkpoint_seconds: least time between two checkpoints.
      report: called with a Progress after every chunk.
      judge: what is measured of the model, in place of errors and `controls`; unpriced, for the
        curator.

    Returns: a Model with raw ids, its guarantee, and the curator's private part. Of several
      processes none holds the record of who rated what, so their model has none. A model of finite
      numbers that is of no use says so in `metrics["diverged"]`: it is paid for, so it is kept.

    Raises:
      UsageError: num_steps or patience below 1, a part of a mechanism that is not of the protocol's
        shape, an `out` that is in use, or a state with no model in it.
      PrivacyError: noise for a smaller change than a rating's; a resume with other settings or
        ratings, or one that would answer a round or release a second time.
      DataError: a resume of a finished model whose model.json is lost.
      CannotWrite: a full disk; what was saved stays, and `resume` goes on from there.
      Diverged: the loss is no longer finite.
      Interrupted: Ctrl-C; the last completed chunk is saved.
      hosts.Lost: another process is gone; the last completed chunk is saved.
    """
    programs.make_room()
    phases = (*earlier, (mechanism, num_steps))
    plan = _checked_and_priced(ratings, phases, seed, patience, layout_kind, num_devices)
    data = plan.data
    init_key, train_key = _two_keys(seed)
    *before, (program, _) = plan.phases
    if hosts.count() > 1:
        _refuse_other_programs(plan.phases)
        program, init_key, train_key = layout.replicate(data, (program, init_key, train_key))
        before = [(layout.replicate(data, phase), steps) for phase, steps in before]
    with hosts.watched("before the first step"):
        state = begin(program, init_key, data, before)
    journal, state = _journal_and_state(
        plan,
        state,
        out,
        resume=resume,
        settings=settings,
        command=command,
        every=checkpoint_seconds,
    )
    training = _Training(plan, journal, state, num_steps)
    with training.kept():
        chunk = chunk_steps or min(default_chunk_steps(data.num_ratings), -(-num_steps // 4))
        training.run(program, train_key, chunk, report)
        whole = Factors(*map(np.asarray, curator_model(training.state, ratings)))
        with hosts.watched("after the last step"):
            measured: Mapping[str, Any] = {"diverged": False}
            if judge is None:
                compared = {
                    name: (trained(phases, _two_keys(seed), data, ratings), private)
                    for name, (phases, private) in (compare or {}).items()
                }
                measured = measure(whole, data, ratings, test, controls, layout_kind, compared)
    model = _model(training, whole, measured, settings)
    if judge is not None:
        model = dataclasses.replace(model, metrics={**(model.metrics or {}), **judge(model)})
    if out is None or not hosts.first():
        return model
    journal.save(training.state)
    model = model.save(Path(out))
    journal.close()
    return model


def _two_keys(seed: int | None) -> tuple[Key, Key]:
    if seed is None:
        return keys.from_operating_system(), keys.from_operating_system()
    init_key, train_key = jax.random.split(keys.from_seed(seed))
    return init_key, train_key


def _refuse_other_programs(phases: Sequence[Phase]) -> None:
    """Raises: UsageError in every process where one was given other settings, or other files."""
    own = fingerprint([phase for phase, _ in phases]).encode()
    if len(set(hosts.gather(own))) > 1:
        raise UsageError(
            "processes were given different settings or different public files",
            where="the mechanism that each of them made",
            fix="give all of them the same files of features, factors and budgets",
        )


class _Plan(NamedTuple):
    """A run that is checked and priced, and of which nothing is computed yet.

    ratings: on the host.
    data: the ratings on the device.
    phases: the earlier ones, and the training last.
    guarantee: of all phases.
    seed, patience: see `fit`.
    seen: whether others see its rounds, each with noise that is never drawn again. An experiment
      repeats the same noise, and shows nothing new.
    """

    ratings: Ratings
    data: layout.Layout
    phases: tuple[Phase, ...]
    guarantee: Guarantee
    seed: int | None
    patience: int | None
    seen: bool


def _checked_and_priced(
    ratings: Ratings,
    phases: Sequence[Phase],
    seed: int | None,
    patience: int | None,
    layout_kind: str,
    num_devices: int | None,
) -> _Plan:
    """The run's plan, before anything is computed or written.

    Raises: UsageError, PrivacyError: see `fit`.
    """
    num_steps = phases[-1][1]
    if num_steps < 1:
        raise UsageError(
            f"the number of steps must be at least 1; got {num_steps}", fix="set --steps"
        )
    if patience is not None and patience < 1:
        raise UsageError(
            f"patience must be at least 1 step; got {patience}",
            fix="set --patience, or leave it out",
        )
    phases = tuple((parts.as_pytree(mechanism), steps) for mechanism, steps in phases)
    parts.check_prices(phases)
    guarantee = price.guarantee(phases, seeded=seed is not None, patience=patience)
    seen = guarantee.rounds_are_seen and seed is None
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
    parts.check(phases, data, densities=False, begun=lambda state: curator_model(state, ratings))
    return _Plan(ratings, data, phases, guarantee, seed, patience, seen)


def _journal_and_state(
    plan: _Plan,
    state: State,
    out: Path | str | None,
    *,
    resume: bool,
    settings: Mapping[str, Any] | None,
    command: Mapping[str, Any] | None,
    every: float,
) -> tuple[Journal, State]:
    """The run's journal, and the state that training goes on from: the newest one, or `state`.

    Raises: UsageError, PrivacyError, DataError, CannotWrite: see `fit`.
    """
    *earlier, (mechanism, num_steps) = plan.phases
    seeded = plan.seed is not None
    run = Identity(
        settings=dict(settings or {}),
        guarantee=plan.guarantee.to_dict(),
        mechanism=fingerprint([phase for phase, _ in plan.phases] if earlier else mechanism),
        ratings=ratings_digest(plan.ratings),
        steps=num_steps,
        seed=plan.seed,
        patience=plan.patience,
    )
    journal = Journal(None, every)
    with hosts.together():
        if hosts.first():
            folder = None if out is None else Path(out)
            every = 0.0 if plan.seen else every
            journal = Journal.open(folder, run, command=command, resume=resume, every=every)
            if plan.seen and resume:
                journal.refuse_second_answers(
                    state,
                    earlier,
                    lambda steps: price.epsilon_spent(plan.phases, plan.guarantee, steps),
                )
            state = journal.restore(state)
            journal.refuse_second_release(state, num_steps, seeded=seeded)
    if resume and hosts.count() > 1:
        state = hosts.from_first(jax.tree.map(np.asarray, state))
        journal.rmse = hosts.result_of_first(lambda: journal.rmse)
    return journal, layout.replicate(plan.data, state)


@dataclasses.dataclass
class _Training:
    """The loop over chunks of steps.

    Attributes:
      state: after the last chunk that is complete.
      num_steps: of the whole run; patience may cut it.
      seconds_per_step: of each chunk but the first one of each length, which compiles.
    """

    plan: _Plan
    journal: Journal
    state: State
    num_steps: int
    seconds_per_step: list[float] = dataclasses.field(default_factory=list)

    def run(
        self, program: Mechanism, key: jax.Array, chunk: int, report: Callable[[Progress], None]
    ) -> None:
        """All steps that are left, `chunk` at a time. Spends `key`."""
        compiled: set[int] = set()
        while (done := int(self.state.step)) < self.num_steps:
            length = min(chunk, self.num_steps - done)
            with interrupts.held_back():  # what was computed is kept
                if self.plan.seen:
                    self.journal.begin(done + length)
                started = time.perf_counter()
                ahead, info, rmse = self._chunk(program, key, length)
                if length in compiled:
                    self.seconds_per_step.append((time.perf_counter() - started) / length)
                compiled.add(length)
                stop = stopping_step([*self.journal.rmse, *rmse], self.plan.patience)
                if stop is not None:
                    self.num_steps, length, ahead = stop, stop - done, self.state
                    if length:
                        ahead, _ = train(program, key, self.state, self.plan.data, num_steps=length)
                self.state = ahead
                clipped = np.asarray(info.clipped_fraction)[:length]
                self.journal.write(ahead, rmse[:length], clipped, last=stop is not None)
            done += length
            spent = price.epsilon_spent(self.plan.phases, self.plan.guarantee, done)
            report(Progress(done, self.num_steps, float(rmse[-1]), spent))

    def _chunk(
        self, program: Mechanism, key: jax.Array, length: int
    ) -> tuple[State, Info, np.ndarray]:
        """(state, info, training RMSE before each step) of the next `length` steps."""
        done, data = int(self.state.step), self.plan.data
        with hosts.watched(f"after {done} of {self.num_steps} steps"):
            ahead, info = train(program, key, self.state, data, num_steps=length)
            if hosts.count() > 1:
                # The host cannot read outputs that are sharded across processes.
                ahead, info = layout.replicate(data, (ahead, info))
            return ahead, info, _finite_rmse(info, done)

    @contextlib.contextmanager
    def kept(self) -> Generator[None]:
        """A block that Ctrl-C or a lost process ends with the newest state saved."""
        try:
            yield
        except KeyboardInterrupt:
            self.journal.save(self.state)
            raise Interrupted(int(self.state.step), self.num_steps, self.journal.folder) from None
        except hosts.Lost:
            self.journal.save(self.state)
            raise


def _model(
    training: _Training,
    whole: Factors,
    measured: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
) -> Model:
    """The model that a finished training returns, priced by the steps that it took."""
    plan, num_steps = training.plan, training.num_steps
    ratings, guarantee = plan.ratings, plan.guarantee
    *earlier, (mechanism, _) = plan.phases
    if plan.patience is not None:
        taken = (*earlier, (mechanism, max(num_steps, 1)))
        guarantee = price.guarantee(taken, seeded=plan.seed is not None, patience=plan.patience)
    seconds = training.seconds_per_step
    return Model(
        release=jax.tree.map(np.asarray, mechanism.release(training.state)),
        guarantee=guarantee,
        users=ratings.users,
        items=ratings.items,
        rating_range=ratings.rating_range,
        settings=dict(settings or {}),
        factors=whole,
        seen=(ratings.user, ratings.item) if hosts.count() == 1 else None,
        metrics={
            **measured,
            "steps": num_steps,
            "seconds_per_step": float(np.median(seconds)) if seconds else None,
            "device": f"{plan.data.num_devices} x {jax.devices()[0].device_kind}",
            "layout": layout.describe(plan.data),
        },
    )


def _finite_rmse(info: Info, done: int) -> np.ndarray:
    """float64[steps]: the training RMSE before each step.

    Raises: Diverged that names the first step whose loss is not finite.
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
