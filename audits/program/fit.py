"""A program that fits, as a black box: what it leaves for others to see, on a data set and on its
neighbour.

The same key on both. Outside `private/` a run may show noisy numbers, and nothing else that
differs: not how long it ran, not a name, a shape, an id, a bound or a mean. Noisy is what another
key makes otherwise on the same ratings.

Data sets that tempt are made beside random ones: where a single rating holds the largest value,
where an item, or a user, has but one rating. The program is the caller's; of a mechanism alone it
is the project's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from accounting.guarantee import Unit
from audits import neighbours
from audits.finding import Finding, Verdict, inconclusive, not_applicable
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.models import storage
from dpmf_jax.models.model import Model
from dpmf_jax.protocol import Mechanism, Phase
from dpmf_jax.training import fit as fitting

Program = Callable[[Ratings, Path, jax.Array], Model]
Made = Callable[[Ratings], tuple[Sequence[Phase], Mapping[str, Any]]]

CLAIMS = {
    "fit: steps": "as many steps are done as are priced, whatever the ratings",
    "fit: files": (
        "files, their rights, arrays and shapes outside private/ are those of the release, whatever"
        " the ratings; what is private is its owner's alone"
    ),
    "fit: public words": (
        "settings, ids, ranges, prices and words outside private/ do not depend on the ratings"
    ),
    "fit: released numbers": (
        "no released number moves with the ratings unless it moves with the noise"
    ),
    "fit: logs": (
        "what is printed says the same words, whatever the ratings; its numbers are the curator's"
    ),
}
TEMPTING = ("value", "item", "user")
NUMBER = re.compile(r"[-+]?(?:\d[\d.,]*(?:e[-+]?\d+)?|nan|inf)", re.IGNORECASE)


class Pair(NamedTuple):
    """Two neighbours, on the host, and what sets them apart."""

    first: Ratings
    second: Ratings
    words: dict[str, Any]


class Run(NamedTuple):
    """model: what was returned. files: content and mode by name, all that stood in the folder. log:
    all that its thread printed, numbers masked. taken: steps done, None where the run does not say.
    priced: steps that the guarantee pays for.
    """

    model: Model
    files: dict[str, tuple[bytes, int]]
    log: str
    taken: int | None
    priced: int

    @property
    def public(self) -> dict[str, bytes]:
        return {
            name: content
            for name, (content, _) in self.files.items()
            if not name.startswith("private/")
        }


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Any,
    *,
    key: jax.Array,
    num_steps: int,
    earlier: Sequence[Phase] = (),
    made: Made | None = None,
    covered: Callable[[Mapping[str, Any], int], int] | None = None,
    num_pairs: int = 1,
    tempting: Collection[str] = TEMPTING,
) -> list[Finding]:
    """What `audit_program` finds of `dpmf_jax.fit` with this mechanism, saved to a folder; seeded,
    on one device.

    Args:
      earlier: phases that run before, as in `fitting.fit`.
      made: how the phases, and the settings that are written down, are made of ratings; so they are
        made of each data set anew, and what they take from the ratings is seen. As many phases and
        steps as are given here are run. None: the phases are those given here, whatever the
        ratings.
      covered: (settings, steps that the guarantee prices) -> steps of training that these pay for,
        where a user takes part in a few of them. None: as many.
    """
    phases = (*earlier, (mechanism, num_steps))

    def priced(model: Model) -> int:
        steps = model.guarantee.steps
        return steps if covered is None else max(steps, covered(model.settings, steps))

    def program(ratings: Ratings, folder: Path, key: jax.Array) -> Model:
        own, settings = (phases, {}) if made is None else made(ratings)
        *before, (last, _) = own[: len(phases)]
        return fitting.fit(
            ratings,
            last,
            num_steps=num_steps,
            earlier=before,
            seed=int(jax.random.bits(key)),
            out=folder,
            settings=settings,
            layout_kind=data.kind,
            num_devices=1,
            chunk_steps=num_steps,
        )

    return audit_program(
        program, ratings, key=key, priced=priced, num_pairs=num_pairs, tempting=tempting
    )


def audit_program(
    program: Program,
    ratings: Ratings,
    *,
    key: jax.Array,
    priced: Callable[[Model], int] = lambda model: model.guarantee.steps,
    num_pairs: int = 1,
    tempting: Collection[str] = TEMPTING,
) -> list[Finding]:
    """Five findings: steps, files, public words, released numbers, logs.

    Args:
      program: (ratings, a folder that does not exist yet, key) -> Model, which may write into the
        folder. It is run on `num_pairs` random pairs and one of each of `tempting` (what stands
        alone in it; see `pairs`): with one key on both, with another on the first.
      priced: of the model that it returns, how many steps of training its guarantee pays for.

    Compares bits, so no false alarms; `consistent` covers these pairs and keys. What a run does
    with noise that is too small, or with ratings that it changes before a mechanism sees them, is
    for audits of the mechanism. A program that ends in an error on one data set of a pair tells
    them apart; where it ends so on `ratings`, all five are `inconclusive`. Where no privacy is
    claimed, released numbers may move.
    """
    choose_key, run_key, other_key = jax.random.split(key, 3)
    try:
        again = run(
            program, ratings, other_key, priced
        )  # first: what is said once in a process, such as a warning, is in it
        own = run(program, ratings, run_key, priced)
    except Exception as error:  # of any program, a stranger's too: how it ends is what is audited
        why = f"the program ended in an error on the ratings themselves ({type(error).__name__})"
        return [inconclusive(name, claim, why, error=str(error)) for name, claim in CLAIMS.items()]
    random = np.random.default_rng(np.asarray(jax.random.bits(choose_key, (4,))))
    guarantee = own.model.guarantee
    tried = pairs(random, ratings, guarantee.unit, num_pairs, tempting, guarantee.largest_change)
    broken: dict[str, list[tuple[Pair, str]]] = {name: [] for name in CLAIMS}
    for pair in tried:
        for name, found in _told_apart(
            program, pair, run_key, other_key, (own, again), ratings, priced
        ).items():
            broken[name] += [(pair, what) for what in found]
    replay = {"key": np.asarray(jax.random.key_data(key)).tolist(), "data_sha256": ratings.sha256()}
    made = {name: _finding(name, found, len(tried), own, replay) for name, found in broken.items()}
    if own.model.guarantee.status == "none":
        numbers = "fit: released numbers"
        made[numbers] = not_applicable(numbers, CLAIMS[numbers], "the guarantee claims no privacy")
    return list(made.values())


def _told_apart(
    program: Program,
    pair: Pair,
    run_key: jax.Array,
    other_key: jax.Array,
    known: tuple[Run, Run],
    ratings: Ratings,
    priced: Callable[[Model], int],
) -> dict[str, list[str]]:
    """What `compare` finds of one pair. known: the runs on `ratings` with either key, which is not
    run again.
    """

    def end(world: Ratings, spent: jax.Array) -> Run | Exception:
        try:
            return run(program, world, spent, priced)
        except Exception as error:  # likewise
            return error

    own, again = (
        known if pair.first is ratings else (end(pair.first, run_key), end(pair.first, other_key))
    )
    there = end(pair.second, run_key)
    if isinstance(own, Run) and isinstance(again, Run) and isinstance(there, Run):
        return compare(own, again, there)
    if isinstance(own, Exception) == isinstance(there, Exception):
        return {}
    error = own if isinstance(own, Exception) else there
    return {
        "fit: steps": [
            f"ended in an error on one data set, not on the other ({type(error).__name__})"
        ]
    }


# --- pairs


def pairs(
    random: np.random.Generator,
    ratings: Ratings,
    unit: Unit,
    num: int,
    tempting: Collection[str] = TEMPTING,
    change: float | None = None,
) -> list[Pair]:
    """`num` random neighbours and those that tempt: the only rating of the largest value, of its
    item, of its user.

    Fewer where the ratings do not allow for one; the last two not where who rated what is public.
    change: how far a value may move, as in `neighbours.choose`.
    """
    indices = np.arange(ratings.num_ratings)
    found = [
        _pair(ratings, int(at), unit, "random", change) for at in random.permutation(indices)[:num]
    ]
    high = ratings.value == ratings.value.max()
    low = float(np.min(ratings.value))
    if "value" in tempting and not high.all():
        at = int(random.choice(np.flatnonzero(high)))
        value = np.where(high & (indices != at), np.float32(low), ratings.value)
        lone = dataclasses.replace(ratings, value=value)
        found.append(_pair(lone, at, unit, "alone has the largest value", change))
    if unit != "rating value":  # that relation has who rated what public
        for what, column in (("item", ratings.item), ("user", ratings.user)):
            counts = np.bincount(column)[column]
            at = int(
                random.choice(np.flatnonzero(counts == counts.min()))
            )  # few others have to go, or none
            if what not in tempting:
                continue
            kept = (
                ratings
                if counts[at] == 1
                else ratings.take((column != column[at]) | (indices == at))
            )
            if kept.num_ratings > 2:
                place = int(
                    np.flatnonzero(
                        (kept.user == ratings.user[at]) & (kept.item == ratings.item[at])
                    )[0]
                )
                found.append(_pair(kept, place, unit, f"the only rating of its {what}"))
    return found


def _pair(ratings: Ratings, at: int, unit: Unit, why: str, change: float | None = None) -> Pair:
    words = {
        "chosen": why,
        "user": ratings.users[ratings.user[at]].item(),
        "item": ratings.items[ratings.item[at]].item(),
        "value": float(ratings.value[at]),
    }
    if unit == "rating value":
        low, high = ratings.rating_range
        value = ratings.value.copy()
        further = np.array(low if value[at] > (low + high) / 2 else high)
        value[at] = neighbours.within(ratings, np.array(at), further, change)
        changed = dataclasses.replace(ratings, value=value)
        return Pair(ratings, changed, words | {"change": f"rating set to {value[at]:g}"})
    gone = (
        ratings.user == ratings.user[at] if unit == "user" else np.arange(ratings.num_ratings) == at
    )
    done = "all ratings of the user removed" if unit == "user" else "rating removed"
    return Pair(ratings, ratings.take(~gone), words | {"change": done})


# --- a run, and what three of them say


def run(program: Program, ratings: Ratings, key: jax.Array, priced: Callable[[Model], int]) -> Run:
    """One call of the program, in a folder of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "run"
        with _listening() as said:
            model = program(ratings, folder, key)
        files = {
            path.relative_to(folder).as_posix(): (
                path.read_bytes(),
                stat.S_IMODE(path.stat().st_mode),
            )
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        log = NUMBER.sub("#", said.getvalue().replace(base, ""))
    lines = [content for name, (content, _) in files.items() if name.endswith("metrics.jsonl")]
    taken = lines[0].count(b"\n") if lines else (model.metrics or {}).get("steps")
    return Run(model, files, log, taken, priced(model))


class _Overheard(io.TextIOBase):
    """Keeps what one thread writes; what others write, such as a progress bar, goes on to where it
    went before.
    """

    def __init__(self, said: io.StringIO, usual: Any):
        self._said, self._usual, self._thread = said, usual, threading.get_ident()

    def _stream(self) -> Any:
        return self._said if threading.get_ident() == self._thread else self._usual

    def write(self, text: str, /) -> int:
        return self._stream().write(text)

    def flush(self) -> None:
        self._stream().flush()

    def isatty(self) -> bool:
        return self._stream().isatty()

    def fileno(self) -> int:
        return self._stream().fileno()


_ONE_LISTENER = threading.Lock()  # there is one sys.stdout for all threads


@contextlib.contextmanager
def _listening() -> Generator[io.StringIO]:
    said = io.StringIO()
    with (
        _ONE_LISTENER,
        contextlib.redirect_stdout(_Overheard(said, sys.stdout)),
        contextlib.redirect_stderr(_Overheard(said, sys.stderr)),
    ):
        yield said


def compare(own: Run, again: Run, there: Run) -> dict[str, list[str]]:
    """What is wrong, by finding. own, there: two neighbours with one key; again: the first with
    another key.
    """
    return {
        "fit: steps": _steps(own, there),
        "fit: files": [*_files(own), *_shapes(own, there)],
        "fit: public words": _words(own, there),
        "fit: released numbers": _numbers(own, again, there),
        "fit: logs": [] if own.log == there.log else [f"printed {_first_line(own.log, there.log)}"],
    }


def _steps(own: Run, there: Run) -> list[str]:
    found = []
    for world in (own, there):
        if world.taken is not None and world.taken > world.priced:
            found.append(f"{world.taken} steps were done, {world.priced} are priced")
    if own.taken != there.taken or own.priced != there.priced:
        found.append(f"{own.taken} steps on one data set, {there.taken} on the other")
    return found


def _files(own: Run) -> list[str]:
    """Of one world: arrays outside private/ that the release does not have, and rights of what is
    private.
    """
    found = []
    released = {part.tobytes() for part in map(np.asarray, jax.tree.leaves(own.model.release))}
    for name, content in own.public.items():
        found += [
            f"{name} has {part}, which is not in the release"
            for part, array in _arrays(name, content).items()
            if array.tobytes() not in released
        ]
    for name, (_, mode) in own.files.items():
        if name.startswith("private/") and mode & 0o077:
            found.append(f"{name} can be read by others (mode {mode:o})")
    return found


def _shapes(own: Run, there: Run) -> list[str]:
    found = [
        f"{name} is in one folder only" for name in sorted(set(own.public) ^ set(there.public))
    ]
    for name in sorted(set(own.public) & set(there.public)):
        shapes = [
            {
                part: (array.shape, str(array.dtype))
                for part, array in _arrays(name, world.public[name]).items()
            }
            for world in (own, there)
        ]
        if shapes[0] != shapes[1]:
            found.append(f"arrays of {name}: {shapes[0]} and {shapes[1]}")
    parts = [
        {
            jax.tree_util.keystr(path): leaf.shape
            for path, leaf in jax.tree.flatten_with_path(world.model.release)[0]
        }
        for world in (own, there)
    ]
    if parts[0] != parts[1]:
        found.append(f"the release: {parts[0]} and {parts[1]}")
    return found


def _words(own: Run, there: Run) -> list[str]:
    """Public text and JSON, and the model's own public fields, where hashes of public files are
    left out.
    """
    found = [
        f"{name}: {_first_line(*texts)}"
        for name in sorted(set(own.public) & set(there.public))
        if not _arrays(name, own.public[name])
        and len(set(texts := [_text(name, world) for world in (own, there)])) > 1
    ]
    for name in ("guarantee", "settings", "rating_range"):
        if getattr(own.model, name) != getattr(there.model, name):
            found.append(f"the model's {name} differ")
    for name in ("users", "items"):
        if not np.array_equal(getattr(own.model, name), getattr(there.model, name)):
            found.append(f"the model's {name} differ")
    return found


def _text(name: str, world: Run) -> str:
    """A public file, as lines; hashes of other public files, and of the file itself, follow from
    what they hash.
    """
    text = world.public[name].decode(errors="replace")
    for other, content in world.public.items():
        text = text.replace(hashlib.sha256(content).hexdigest(), f"hash of {other}")
    if name.endswith(".json"):
        with contextlib.suppress(ValueError):
            content = json.loads(text)
            if isinstance(content, dict) and re.fullmatch(
                r"[0-9a-f]{64}", str(content.get("sha256"))
            ):
                content["sha256"] = "hash of the rest"
            return json.dumps(content, indent=1, sort_keys=True)
    return text


def _numbers(own: Run, again: Run, there: Run) -> list[str]:
    """Entries of the release that the key leaves as they are and the ratings do not."""
    trees = [jax.tree.map(np.asarray, world.model.release) for world in (own, again, there)]
    if len({str(jax.tree.structure(tree)) for tree in trees}) > 1:
        return []  # a matter of files and shapes
    found = []
    for (path, a), b, c in zip(
        jax.tree.flatten_with_path(trees[0])[0],
        *(jax.tree.leaves(tree) for tree in trees[1:]),
        strict=True,
    ):
        if a.shape == b.shape == c.shape and (count := int(np.sum((a == b) & (a != c)))):
            found.append(f"{count} of {a.size} entries of {jax.tree_util.keystr(path)}")
    return found


def _arrays(name: str, content: bytes) -> dict[str, np.ndarray]:
    """Of a file of arrays; nothing of another."""
    if name.endswith(".safetensors"):
        with tempfile.TemporaryDirectory() as base:
            path = Path(base) / "arrays"
            path.write_bytes(content)
            return storage.read_arrays(path)
    if name.endswith((".npy", ".npz")):
        loaded = np.load(io.BytesIO(content), allow_pickle=False)
        return dict(loaded) if name.endswith(".npz") else {"array": loaded}
    return {}


def _first_line(text: str, other: str) -> str:
    lines, others = text.splitlines(), other.splitlines()
    for a, b in zip(lines, others, strict=False):
        if a != b:
            return f"{a.strip()[:80]!r} and {b.strip()[:80]!r}"
    return f"{len(lines)} and {len(others)} lines"


def _finding(
    name: str, broken: list[tuple[Pair, str]], num: int, start: Run, replay: dict[str, Any]
) -> Finding:
    details: dict[str, Any] = {
        "pairs": num,
        "steps_done": start.taken,
        "steps_priced": start.priced,
        "files": sorted(start.public),
        "unit_of_measurement": "things that differ or should not be there, over all pairs",
        "power": (
            "exact for these pairs and keys: a single bit of what is public, or one step more,"
            " would be seen"
        ),
    }
    if broken:
        details["found"] = sorted({what for _, what in broken})[:8]
        replay = replay | {"pair": broken[0][0].words}
    verdict: Verdict = "violated" if broken else "consistent"
    return Finding(
        audit=name,
        claim=CLAIMS[name],
        measured=float(len(broken)),
        claimed=0.0,
        lower=float(len(broken)),
        verdict=verdict,
        details=details | {"replay": replay},
    )
