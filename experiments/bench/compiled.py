"""The programs of an accelerator that is not here: `dpmf bench --gpu --compile-only`.

jax's CUDA plugin compiles them for one or several H200, which needs no GPU. They are read and not
run, so nothing here is a time of a step.

- `rows`: what `dpmf bench --gpu` would run, the private step of paper 001 at each size and rank in
  each layout that fits: the kernels of a step, what they read and write, memory, and the least time
  that this takes.
- `ordered`: the same with sums in one order (XLA_FLAGS=--xla_gpu_deterministic_ops=true).
- `plan`: a billion ratings on one card and on eight (docs/billion.md), as shapes without values.
- `large`: mechanisms of `dpmf audit --all` at MovieLens-20M size, except those that take one rating
  after the other.
- `mechanisms`: all of them, small, on one device and on eight, with what a step exchanges.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmf_jax.errors import DpmfError, PrivacyError
from experiments.bench import generated, gpu, hlo, measure, roofline
from experiments.cli import console, devices, provenance

if TYPE_CHECKING:
    from dpmf_jax.layout import Layout

# An H200 of 141 GB by its data sheet. The rest is the same for all GPUs of compute capability 9.0.
NAME, BANDWIDTH, FLOAT32 = "NVIDIA H200", 4.8e12, 67e12  # bytes, operations a second
TARGET = f"""
platform_name: "CUDA"
device_description_str: "{NAME}"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 }}
gpu_device_info {{
  cuda_compute_capability {{ major: 9 }}
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: {BANDWIDTH:.0f}
  device_memory_size: 141000000000
  l2_cache_size: 52428800
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
"""
MANY = 8  # devices
LARGE = "ml-20m"
SEQUENTIAL = "002 as published: sketch"
BILLION = {"users": 7_000_000, "items": 50_000, "ratings": 10**9, "rank": 64}
SLOTS = 1.3  # a rating, as MovieLens-1M has
ORDERED = {"xla_gpu_deterministic_ops": True}


def run(
    *,
    sizes: Sequence[str] = gpu.SIZES,
    ranks: Mapping[str, Sequence[int]] = gpu.RANKS,
    large: str | None = LARGE,
    labels: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The tables of the module, a JSON-able object.

    Args:
      sizes, ranks: as in `gpu.run`. large: size of `large`, or none of it. labels: of the
        mechanisms; all by default.

    Raises: PrivacyError (a missing precondition) without jax's CUDA plugin.
    """
    start = time.perf_counter()
    targets = _targets()
    rows = []
    for size, rank, kind in gpu.cases(sizes, ranks):
        console.say(f"bench --gpu --compile-only: {kind}, rank {rank}, {size}")
        rows.append(_row(size, rank, kind, targets))
    ordered = [_row(size, ranks[size][0], "split", targets, ORDERED) for size in sizes]
    return {
        "benchmark": "gpu-compiled",
        "command": "dpmf bench --gpu --compile-only",
        "data": (
            f"generated; compiled for {NAME}, which is not there: nothing was run, moved and floor"
            f" ms are counts over the data sheet's {BANDWIDTH / 1e12} TB/s and {FLOAT32 / 1e12:.0f}"
            " TFlop/s"
        ),
        "consecutive_steps": gpu.STEPS,
        "rows": rows,
        "ordered": ordered,
        "plan": [_plan(targets[:1]), _plan(targets)],
        "large": [] if large is None else [*_large(large, targets, labels)],
        "mechanisms": [*_mechanisms(targets, labels)],
        "seconds": time.perf_counter() - start,
        "commit": provenance.commit(),
        **measure.machine(1),
        "versions": measure.versions("jax-cuda13-plugin"),
    }


def _targets() -> Sequence[Any]:
    """`MANY` devices to compile for, which are not here."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # of the driver, which is not there either
    flags = os.environ.get("XLA_FLAGS", "")
    if "autotune" not in flags:  # choosing kernels by running them
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()
    devices.use(MANY)  # on which ratings are laid out
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(
            platform="cuda", target_config=TARGET, topology=f"1x1x{MANY}"
        )
    except (
        RuntimeError
    ) as error:  # without the plugin jax raises a NotImplementedError, which is one
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PrivacyError(
            "programs for a GPU cannot be compiled here",
            where=f"jax's CUDA plugin: {reason}",
            fix="make cuda, or pip install 'dpmf-jax[cuda]'; no GPU is needed",
        ) from None
    return found.devices


def _row(
    size: str,
    rank: int,
    kind: str,
    targets: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    from dpmf_jax import layout

    mechanism, key, state, data = gpu.problem(size, rank, kind)
    program = _compile(mechanism, key, state, data, gpu.STEPS, targets[:1], options)
    users, items, num_ratings = generated.SIZES[size]
    counted = roofline.step(
        users, items, num_ratings if kind == "split" else users * items, rank, program.held
    )
    least = roofline.floor(
        kind, counted, {"gemm_gflop_s": FLOAT32 / 1e9, "copy_gb_s": BANDWIDTH / 1e9}, math.inf
    )
    return {
        "size": size,
        "rank": rank,
        "layout": kind,
        "chosen": layout.choose(users, items, num_ratings, backend="gpu") == kind,
        "kernels": program.kernels,
        "moved_mb": program.moved / 2**20,
        "moved_ms": 1e3 * program.moved / BANDWIDTH,
        "floor_ms": least["floor_ms"],
        "bound_by": least["bound_by"],
        "layout_mb": program.held / 2**20,
        "temporary_mb": program.temporary / 2**20,
        "compile_ms": program.compile_ms,
    }


def _plan(targets: Sequence[Any]) -> dict[str, Any]:
    """A billion ratings, joint noise, with the users cut over all cards: what one card holds."""
    import jax
    import jax.numpy as jnp

    from dpmf_jax import layout
    from dpmf_jax.devices import spread
    from dpmf_jax.layout import split
    from dpmf_jax.mechanisms.gaussian import mechanisms as gaussian

    users, items, num_ratings, rank = BILLION.values()
    cut = jax.NamedSharding(spread.mesh(len(targets)), spread.CUT)

    def side(width: int) -> Any:
        grain = 128 * len(targets)
        pieces = math.ceil(SLOTS * num_ratings / width / grain) * grain
        shapes = (
            ((pieces,), jnp.int32),
            ((pieces, width), jnp.int32),
            ((pieces, width), jnp.float32),
        )
        return split.Side(
            *(jax.ShapeDtypeStruct(shape, kind, sharding=cut) for shape, kind in shapes)
        )

    data = layout.Layout(
        stored=layout.Split(
            side(split.width(users, num_ratings)),
            side(split.width(items * len(targets), num_ratings)),
        ),
        num_users=users,
        num_items=items,
        num_ratings=num_ratings,
        num_devices=len(targets),
        users_each=-(-users // len(targets)) if len(targets) > 1 else None,
    )
    config = gaussian.Config(rating_range=(1.0, 5.0), rank=rank, noise_multiplier=6.2, center=3.0)
    mechanism, key = gaussian.joint_noise(config), jax.random.key(0)
    state = jax.eval_shape(lambda key: mechanism.init(key, data, None), key)
    program = _compile(mechanism, key, state, data, gpu.STEPS, targets)
    return BILLION | {
        "devices": len(targets),
        "kernels": program.kernels,
        "moved_mb": program.moved / 2**20,
        "moved_ms": 1e3 * program.moved / BANDWIDTH,
        "exchanged_mb": program.exchanged / 2**20,
        "layout_mb": program.held / 2**20,
        "arguments_mb": program.arguments / 2**20,
        "temporary_mb": program.temporary / 2**20,
        "compile_ms": program.compile_ms,
    }


def _mechanisms(targets: Sequence[Any], labels: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Rows {label, layout, devices, kernels, exchanged_kb, unordered, refused}.

    unordered: sums of floats without an order, see `hlo.unordered`, in what a step releases.
    refused: why a mechanism is not for several devices, else None.
    """
    from dpmf_jax import layout
    from experiments.audit import suite as audit_suite

    for trial in _trials(audit_suite.generated(), labels, small=True):
        for kind, count in (
            ("split", 1),
            ("split", len(targets)),
            ("dense", 1),
            ("dense", len(targets)),
        ):
            row: dict[str, Any] = {"label": trial.label, "layout": kind, "devices": count}
            data = layout.make(trial.ratings, kind=kind, num_devices=count)
            try:
                program = _last_phase(trial, data, targets[:count])
                unordered = len(_unordered(trial, data, targets[:count]))
            except DpmfError as error:
                nothing = dict.fromkeys(("kernels", "exchanged_kb", "unordered"))
                yield row | nothing | {"refused": error.what}
                continue
            yield row | {
                "kernels": program.kernels,
                "exchanged_kb": program.exchanged / 2**10,
                "unordered": unordered,
                "refused": None,
            }


def _large(
    size: str, targets: Sequence[Any], labels: Sequence[str] | None
) -> Iterator[dict[str, Any]]:
    """{label, kernels, moved_mb, temporary_mb, compile_ms} on one device, in the split layout."""
    from dpmf_jax import layout

    ratings = generated.ratings(size)
    data = layout.make(ratings, kind="split", num_devices=1)
    for trial in _trials(ratings, labels, small=False):
        if trial.ratings is ratings and trial.label != SEQUENTIAL:
            program = _last_phase(trial, data, targets[:1])
            yield {
                "label": trial.label,
                "kernels": program.kernels,
                "moved_mb": program.moved / 2**20,
                "temporary_mb": program.temporary / 2**20,
                "compile_ms": program.compile_ms,
            }


def _trials(ratings: Any, labels: Sequence[str] | None, *, small: bool) -> Iterator[Any]:
    from experiments.audit import suite as audit_suite

    for label, make in audit_suite.makers(ratings, {}, small=small).items():
        if labels is None or label in labels:
            console.say(f"bench --gpu --compile-only: {label}, {ratings.num_ratings:,} ratings")
            yield make()


def _start(trial: Any, data: Layout) -> tuple[Any, Any, Any]:
    """(mechanism, key, shapes of the state) of a trial's last phase, after the phases before it."""
    import jax

    from dpmf_jax import protocol
    from dpmf_jax.noise import keys

    *earlier, (mechanism, _) = trial.phases
    key = keys.from_seed(0)
    return (
        mechanism,
        key,
        jax.eval_shape(lambda key: protocol.begin(mechanism, key, data, earlier), key),
    )


def _last_phase(trial: Any, data: Layout, targets: Sequence[Any]) -> Program:
    """The program of a trial's last phase."""
    return _compile(*_start(trial, data), data, trial.phases[-1][1], targets)


def _unordered(trial: Any, data: Layout, targets: Sequence[Any]) -> list[str]:
    """See `hlo.unordered`, of a step of the last phase and of what it would release then.

    What is for the curator's eyes, such as the loss, is not in it.
    """
    import jax

    from dpmf_jax import protocol
    from dpmf_jax.devices import spread

    @jax.jit
    def released(mechanism: Any, key: Any, state: Any, data: Layout) -> Any:
        return mechanism.release(protocol.step(mechanism, key, state, data)[0])

    mechanism, key, state = _start(trial, data)
    with spread.compiling_for(targets):
        given = _shapes((mechanism, key, state, data), len(targets))
        text = released.lower(*given).compile().as_text()
    assert text is not None
    return hlo.unordered(text)


class Program(NamedTuple):
    """What a compiled step does and holds. A loop of unknown length counts once.

    kernels: int, the kernels of a step; None where their number depends on the data.
    moved: bytes that they read and write, each array once a kernel.
    exchanged: bytes that a device hands to its collectives.
    held: bytes of the ratings on a device.
    arguments: bytes of all arguments on a device.
    temporary: bytes of the temporary arrays on a device.
    compile_ms: milliseconds of compilation.
    """

    kernels: int | None
    moved: int
    exchanged: int
    held: int
    arguments: int
    temporary: int
    compile_ms: float


def _compile(
    mechanism: Any,
    key: Any,
    state: Any,
    data: Layout,
    num_steps: int,
    targets: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> Program:
    import jax

    from dpmf_jax import protocol
    from dpmf_jax.devices import spread

    with spread.compiling_for(targets):
        given = _shapes((mechanism, key, state, data), len(targets))
        start = time.perf_counter()
        lowered = protocol.train.lower(*given, num_steps=num_steps)
        made = lowered.compile(compiler_options=dict(options or {}))
        spent = time.perf_counter() - start
    text, memory = made.as_text(), made.memory_analysis()
    assert text is not None
    assert memory is not None
    found = [*hlo.kernels(text, num_steps)]
    known = all(kernel.times is not None for kernel in found)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(data)) // len(targets)
    return Program(
        kernels=sum(kernel.times or 0 for kernel in found) if known else None,
        moved=sum(kernel.bytes * (kernel.times or 1) for kernel in found),
        exchanged=sum(kernel.exchanged * (kernel.times or 1) for kernel in found),
        held=held,
        arguments=memory.argument_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        compile_ms=1e3 * spent,
    )


def _shapes(tree: Any, count: int) -> Any:
    """The shapes of arrays, cut over the devices to compile for as the arrays are cut here."""
    import jax

    from dpmf_jax.devices import spread

    mesh = spread.mesh(count)

    def shape(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype"):
            return leaf
        here = getattr(leaf, "sharding", None)
        spec = here.spec if isinstance(here, jax.NamedSharding) else spread.WHOLE
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=jax.NamedSharding(mesh, spec))

    return jax.tree.map(shape, tree)
