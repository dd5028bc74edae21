"""What is counted of a compiled program is what it says."""

import jax
import jax.numpy as jnp
import pytest

from experiments.bench import hlo

PRINTED = """HloModule jit_train, is_scheduled=true

%fused_add (param_0: f32[8,4], param_1: f32[8,4]) -> f32[8,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %param_1 = f32[8,4]{1,0} parameter(1)
  ROOT %add.1 = f32[8,4]{1,0} add(%param_0, %param_1)
}

%inner (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %arg = (s32[], f32[8,4]{1,0}) parameter(0)
  %at = s32[] get-tuple-element(%arg), index=0
  %rows = f32[8,4]{1,0} get-tuple-element(%arg), index=1
  %twice = f32[8,4]{1,0} fusion(%rows, %rows), kind=kLoop, calls=%fused_add
  ROOT %both = (s32[], f32[8,4]{1,0}) tuple(%at, %twice)
}

%body (arg: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %arg = (s32[], f32[8,4]{1,0}) parameter(0)
  %at = s32[] get-tuple-element(%arg), index=0
  %rows = f32[8,4]{1,0} get-tuple-element(%arg), index=1
  %sum = f32[8,4]{1,0} fusion(%rows, /*index=1*/%rows), kind=kLoop, calls=%fused_add, \
metadata={op_name="a(b), %c"}
  %all-reduce-start = f32[8,4]{1,0} all-reduce-start(%sum), to_apply=%region
  %all-reduce-done = f32[8,4]{1,0} all-reduce-done(%all-reduce-start)
  %given = (s32[], f32[8,4]{1,0}) tuple(%at, %all-reduce-done)
  %loop = (s32[], f32[8,4]{1,0}) while(%given), condition=%less, body=%inner, \
backend_config={"known_trip_count":{"n":"3"}}
  %some = (s32[], f32[8,4]{1,0}) while(%loop), condition=%less, body=%inner, backend_config={}
  %kept = f32[8,4]{1,0} get-tuple-element(%some), index=1
  %bits = (pred[8]{0}, bf16[8]{0}) custom-call(%kept), custom_call_target="t"
  ROOT %end = (s32[], f32[8,4]{1,0}) tuple(%at, %kept)
}

ENTRY %main (rows: f32[8,4]) -> f32[8,4] {
  %rows = f32[8,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %copied = f32[8,4]{1,0} copy(%rows)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %copied)
  %steps = (s32[], f32[8,4]{1,0}) while(%start), condition=%less, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  ROOT %last = f32[8,4]{1,0} get-tuple-element(%steps), index=1
}
"""


def test_kernels_of_a_step_are_counted_through_its_loops():
    rows = 8 * 4 * 4
    found = [*hlo.kernels(PRINTED, 5)]
    assert found == [
        hlo.Kernel("sum", 1, 3 * rows, 0),
        hlo.Kernel("all-reduce-start", 1, 2 * rows, rows),
        hlo.Kernel("twice", 3, 3 * rows, 0),
        hlo.Kernel("twice", None, 3 * rows, 0),  # nobody knows how often
        hlo.Kernel("bits", 1, rows + 8 * 1 + 8 * 2, 0),
    ]
    assert (
        next(kernel.name for kernel in hlo.kernels(PRINTED, 1)) == "copied"
    )  # no loop over one step
    assert sum(kernel.times or 0 for kernel in hlo.kernels(PRINTED, 1)) == 1 + 5 * (2 + 3 + 1)


def test_a_program_that_was_compiled_here_is_read_to_its_end():
    @jax.jit
    def program(rows):
        return jax.lax.scan(lambda x, _: (jnp.sort(jnp.sin(x) @ x), None), rows, length=7)[0]

    found = [*hlo.kernels(program.lower(jnp.ones((6, 6))).compile().as_text(), 7)]
    assert any("sort" in kernel.name for kernel in found)
    assert all(kernel.bytes > 0 for kernel in found)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[6040,20]{1,0}", 483_200),
        ("pred[]", 1),
        ("(u32[2]{0}, /*index=1*/s8[3]{0}, bf16[2,2]{1,0})", 19),
        ("()", 0),
        ("f8e4m3fn[16]{0}", 16),
        ("s4[3]{0}", 2),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert hlo.size_of(shape) == size


REDUCED = """HloModule jit_sum

%add.clone (x: KIND[], y: KIND[]) -> KIND[] {
  %x = KIND[] parameter(0)
  %y = KIND[] parameter(1)
  ROOT %sum = KIND[] add(%x, %y)
}

%second (x: KIND[], y: KIND[]) -> KIND[] {
  %x = KIND[] parameter(0)
  ROOT %y = KIND[] parameter(1)
}

%fused (p: KIND[8], at: s32[4,1], v: KIND[4]) -> KIND[8] {
  %p = KIND[8]{0} parameter(0)
  %at = s32[4,1]{1,0} parameter(1)
  %v = KIND[4]{0} parameter(2)
  %set = KIND[8]{0} scatter(%p, %at, %v), update_window_dims={}, to_apply=%second
  ROOT %added = KIND[8]{0} scatter(%set, %at, %v), update_window_dims={}, to_apply=%add.clone
}

ENTRY %main (p: KIND[8], at: s32[4,1], v: KIND[4]) -> KIND[8] {
  %p = KIND[8]{0} parameter(0)
  %at = s32[4,1]{1,0} parameter(1)
  %v = KIND[4]{0} parameter(2)
  %one = KIND[8]{0} fusion(%p, %at, %v), kind=kInput, calls=%fused
  ROOT %all = KIND[8]{0} all-reduce(%one), replica_groups={{0,1}}, to_apply=%add.clone
}
"""


def test_scatters_and_sums_over_devices_are_found_inside_of_kernels_too():
    assert hlo.unordered(REDUCED.replace("KIND", "f32")) == ["added", "all"]
    assert hlo.unordered(REDUCED.replace("KIND", "u32")) == []
