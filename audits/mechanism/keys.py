"""Every key that a run spends, written down: none may be spent twice.

A program is followed operation by operation, as it is compiled. Wherever random bits are drawn, or
the words of a key are taken, the key that they come from is kept as data beside the result. Nothing
of the mechanism is replaced: what is followed are `protocol.begin` and `protocol.train` themselves,
in the chunks in which `fitting.fit` calls them. Noise is only as independent as its keys: if a key
is spent twice, the difference of two responses has no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from audits import transcript
from audits.finding import Finding, Verdict, not_applicable
from dpmf_jax import protocol
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.layout import Layout
from dpmf_jax.protocol import Mechanism, Phase
from dpmf_jax.training import fit as fitting

NAMES = ("noise: keys", "noise: seeds")
CLAIMS = (
    "no key of a run is spent twice: over steps, leaves, phases and chunks",
    "no two runs spend the same key on noise: there are as many seeds as keys",
)
SEEDS, NUMBERS = 4096, 1 << 22  # runs whose first keys are compared; random numbers, at most
# Operations that draw from a key, or take its words: hashes and Poisson samples come from words.
SPENDS = ("random_bits", "random_gamma", "random_unwrap")
CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "checkpoint",
    "remat",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vmap_call",
)

Run = Callable[[Sequence[Phase], jax.Array, Layout, int], np.ndarray]


def audit(
    mechanism: Mechanism,
    ratings: Ratings,
    data: Layout,
    *,
    key: jax.Array,
    num_steps: int,
    earlier: Sequence[Phase] = (),
    run: Run | None = None,
) -> list[Finding]:
    """Two findings: on a whole run after the phases `earlier`, and on the first step of many runs.

    Compares keys of 64 bits, which are equal by chance in one of 10^12 audits.

    Args:
      run: (phases, key, data, steps in a chunk) -> the keys spent, uint32[keys, words]; None is
        `production`.
    """
    phases = (*earlier, (mechanism, num_steps))
    chunk = min(fitting.default_chunk_steps(ratings.num_ratings), -(-num_steps // 4))
    spent = (run or production)(phases, key, data, chunk)
    replay: dict[str, Any] = {
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "data_sha256": ratings.sha256(),
    }
    power = (
        "exact for this run: a single key that is spent again would be seen, its own or another's;"
        " inside a loop of unknown length the key that enters it is what is kept"
    )
    details = {"steps": num_steps, "phases": len(phases), "chunk_steps": chunk, "power": power}
    return [
        _distinct_finding(0, spent, details, replay),
        _seeds_finding(mechanism, key, data, replay),
    ]


def _distinct_finding(
    which: int, spent: np.ndarray, details: dict[str, Any], replay: dict[str, Any]
) -> Finding:
    different, first, counts = np.unique(spent, axis=0, return_index=True, return_counts=True)
    twice = np.flatnonzero(counts > 1)
    if len(twice):
        worst = twice[np.argmin(first[twice])]
        places = np.flatnonzero((spent == different[worst]).all(axis=1))
        replay = replay | {"spent_twice": different[worst].tolist(), "places": places[:8].tolist()}
    verdict: Verdict = "violated" if len(twice) else "consistent"
    again = float(len(spent) - len(different))
    return Finding(
        audit=NAMES[which],
        claim=CLAIMS[which],
        measured=again,
        claimed=0.0,
        lower=again,
        verdict=verdict,
        details={
            "keys": len(spent),
            "unit_of_measurement": "keys that were spent before",
            **details,
            "replay": replay,
        },
    )


def _seeds_finding(
    mechanism: Mechanism, key: jax.Array, data: Layout, replay: dict[str, Any]
) -> Finding:
    """The finding on the keys of one step's noise, in as many runs as are cheap."""
    start_key, coins_key, draw_key = jax.random.split(key, 3)
    start = protocol.begin(mechanism, start_key, data)
    statistics = transcript.step_statistics(mechanism, start, data, coins_key)
    entries = sum(leaf.size for leaf in jax.tree.leaves(statistics))
    num = int(np.clip(NUMBERS // max(entries, 1), 64, SEEDS))

    def draw(sample: Any, keys: jax.Array, statistics: Any) -> Any:
        # Not vmap, which would keep a fixed key only once.
        return jax.lax.map(lambda key: sample(key, statistics), keys)

    _, spent = recorded(draw)(mechanism.noise.sample, jax.random.split(draw_key, num), statistics)
    if not len(spent):
        return not_applicable(NAMES[1], CLAIMS[1], "the noise spends no key")
    seen = f"as few as {num**2 // 6:,} seeds would be seen with probability 0.95"
    return _distinct_finding(1, np.asarray(spent), {"runs": num, "power": seen}, replay)


def production(phases: Sequence[Phase], key: jax.Array, data: Layout, chunk: int) -> np.ndarray:
    """The keys that `fitting.fit` spends on these phases, uint32[keys, words]. Spends `key`."""
    *earlier, (mechanism, num_steps) = phases
    chunks, rest = divmod(num_steps, chunk)
    begin = recorded(lambda mechanism, key, data: protocol.begin(mechanism, key, data, earlier))
    train, end = (
        recorded(lambda *args, n=n: protocol.train(*args, num_steps=n)[0]) for n in (chunk, rest)
    )

    @jax.jit
    def followed(mechanism: Mechanism, key: jax.Array, data: Layout) -> list[jax.Array]:
        """The keys alone, so that what they do not depend on is not compiled."""
        init_key, train_key = jax.random.split(key)
        state, first = begin(mechanism, init_key, data)
        state, of_chunks = jax.lax.scan(
            lambda state, _: train(mechanism, train_key, state, data), state, None, length=chunks
        )
        return [first, of_chunks, *([end(mechanism, train_key, state, data)[1]] if rest else [])]

    kept = [np.asarray(part) for part in followed(mechanism, key, data)]
    words = max(part.shape[-1] for part in kept)
    return np.concatenate([part.reshape(-1, words) for part in kept])


def recorded(fn: Callable[..., Any]) -> Callable[..., tuple[Any, jax.Array]]:
    """`fn` with a second result, the keys that it spends, uint32[keys, words].

    It is traced at the first call, then compiled. Keys come by their place in the program, those of
    a `scan` step by step at each place. Where drawing depends on what is computed (`while`,
    `cond`), the keys that enter count as spent.
    """
    traced: list[Any] = []

    def flat(*args: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(fn(*args))
        traced.append(structure)
        return leaves

    def followed(*args: Any) -> tuple[Any, jax.Array]:
        if not traced:
            closed = jax.make_jaxpr(flat)(*args)
            traced.append(jax.jit(lambda leaves: _follow(closed.jaxpr, closed.consts, leaves)))
        structure, compiled = traced
        results, spent = compiled(jax.tree.leaves(args))
        return jax.tree.unflatten(structure, results), _joined(spent)

    return followed


def _joined(spent: list[jax.Array]) -> jax.Array:
    flat = [part.reshape(-1, part.shape[-1]) for part in spent]
    return jnp.concatenate(flat) if flat else jnp.zeros((0, 2), jnp.uint32)


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _inner(eqn: Any) -> list[Any]:
    """The programs inside an operation."""
    found = [
        eqn.params.get(name)
        for name in ("jaxpr", "call_jaxpr", "call", "cond_jaxpr", "body_jaxpr", "fun_jaxpr")
    ]
    return [part for part in (*found, *eqn.params.get("branches", ())) if part is not None]


def _draws(jaxpr: Any) -> bool:
    """Whether a program spends a key."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return any(eqn.primitive.name in SPENDS or any(map(_draws, _inner(eqn))) for eqn in jaxpr.eqns)


def _follow(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]
) -> tuple[list[Any], list[jax.Array]]:
    """(results, key data of each drawing, [..., words]) of a program."""
    known: dict[Any, Any] = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)
    )
    spent: list[jax.Array] = []

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else known[atom]

    for eqn in jaxpr.eqns:
        values, name = [read(atom) for atom in eqn.invars], eqn.primitive.name
        if name in SPENDS:
            spent.append(jax.random.key_data(values[0]))
        inner = _inner(eqn)
        if inner and not any(map(_draws, inner)):
            results = _bind(eqn, values)
        elif inner and name in CALLS:
            body = inner[0]
            results, more = _follow(
                getattr(body, "jaxpr", body), getattr(body, "consts", ()), values
            )
            spent += more
        elif name == "scan":
            results, more = _follow_scan(eqn.params, values)
            spent += more
        else:
            if inner:
                spent += [jax.random.key_data(value) for value in values if _is_key(value)]
            results = _bind(eqn, values)
        known |= dict(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], spent


def _bind(eqn: Any, values: list[Any]) -> list[Any]:
    bound = eqn.primitive.get_bind_params(eqn.params)
    functions, params = (
        bound if isinstance(bound, tuple) else ((), bound)
    )  # older versions of jax give both
    results = eqn.primitive.bind(*functions, *values, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def _scan_counts(params: Any) -> tuple[int, int]:
    """How many values are constant, how many are carried; newer versions of jax give trees."""
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def _follow_scan(params: Any, values: list[Any]) -> tuple[list[Any], list[jax.Array]]:
    closed, (num_consts, num_carry) = params["jaxpr"], _scan_counts(params)
    consts, carry, xs = (
        values[:num_consts],
        values[num_consts : num_consts + num_carry],
        values[num_consts + num_carry :],
    )

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        results, spent = _follow(
            getattr(closed, "jaxpr", closed), closed.consts, [*consts, *carry, *x]
        )
        return results[:num_carry], (results[num_carry:], spent)

    carry, (ys, spent) = jax.lax.scan(
        body, carry, xs, length=params["length"], reverse=params["reverse"]
    )
    return [*carry, *ys], spent
