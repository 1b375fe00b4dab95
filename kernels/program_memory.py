"""Words of memory that belong to one program, by number: shared memory on a GPU, device memory elsewhere.

Triton has no name for shared memory that threads index as they like, nor atomics there. PTX has both, and each of these
functions is an instruction or two of it. `program_memory` declares the array, once in a kernel, and hands back where it
begins. What another thread wrote is there after a barrier. Where SHARED is false they are Triton's own operations on
memory that the caller gave: the interpreter runs those, and arrays of more than `MOST_BYTES` lie there.

A block has as many elements as the program has threads: of fewer, several threads would write the same. Each function
returns at its end alone: Triton compiles what follows a return in a branch, too.
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST_BYTES = 48 * 2**10
"""Most that a kernel can declare by a name."""


@triton.constexpr_function
def _declaration(WORDS):
    return f".shared .align 16 .b32 program_memory[{WORDS}]; mov.b32 $0, program_memory;"


@triton.jit
def program_memory(scratch_ptr, WORDS: tl.constexpr, SHARED: tl.constexpr):
    """Where the program's words begin, in shared memory or in *scratch_ptr*, which holds those of all programs."""
    if SHARED:
        memory = tl.inline_asm_elementwise(_declaration(WORDS), "=r", [], tl.int32, is_pure=False, pack=1)
    else:
        memory = scratch_ptr + tl.program_id(0).to(tl.int64) * WORDS
    return memory


@triton.jit
def put(memory, at, word, here, SHARED: tl.constexpr):
    """Write words where *here* is true."""
    if SHARED:
        tl.inline_asm_elementwise(
            "@$3 st.shared.b32 [$1], $2; mov.b32 $0, 0;", "=r,r,r,b",
            [memory + 4 * at, word, here], tl.int32, is_pure=False, pack=1)  # fmt: skip
    else:
        tl.store(memory + at, word, mask=here)


@triton.jit
def place(memory, at, SHARED: tl.constexpr):
    """Where word *at* lies, as `put_two_under` takes it."""
    return memory + at * (4 if SHARED else 1)


@triton.jit
def put_two_under(limit, place, word, next_word, SHARED: tl.constexpr):
    """Write words under *limit*, unsigned, and others behind them, at even places: the places that come next."""
    if SHARED:
        next_place = tl.inline_asm_elementwise(
            """{ .reg .pred p;
            setp.lt.u32 p, $2, $4;
            @p st.shared.v2.b32 [$1], {$2, $3};
            mov.b32 $0, $1;
            @p add.u32 $0, $1, 8; }""", "=r,r,r,r,r",
            [place, word, next_word, limit], tl.int32, is_pure=False, pack=1)  # fmt: skip
    else:
        here = word < limit
        tl.store(place, word.to(tl.int32, bitcast=True), mask=here)
        tl.store(place + 1, next_word, mask=here)
        next_place = place + 2 * here.to(tl.int32)
    return next_place


@triton.jit
def take(memory, at, SHARED: tl.constexpr):
    """Words at given places."""
    if SHARED:
        word = tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];", "=r,r", [memory + 4 * at], tl.int32, is_pure=False, pack=1)  # fmt: skip
    else:
        word = tl.load(memory + at)
    return word


@triton.jit
def take_two(memory, at, FROM: tl.constexpr, SHARED: tl.constexpr):
    """Words at even places, counted from FROM, and those behind them."""
    if SHARED:
        words = tl.inline_asm_elementwise(
            "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r",
            [memory + 4 * at + 4 * FROM], (tl.int32, tl.int32), is_pure=False, pack=1)  # fmt: skip
    else:
        words = tl.load(memory + FROM + at), tl.load(memory + FROM + at + 1)
    return words


@triton.jit
def clear_four(memory, at, FROM: tl.constexpr, SHARED: tl.constexpr):
    """Words at multiples of four, counted from FROM, and the three behind each; they become zeros."""
    if SHARED:
        found = tl.inline_asm_elementwise(
            """ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];
            st.shared.v4.b32 [$4], {0, 0, 0, 0};""", "=&r,=&r,=&r,=&r,r",
            [memory + 4 * at + 4 * FROM], (tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1)  # fmt: skip
    else:
        first = memory + FROM + at
        found = tl.load(first), tl.load(first + 1), tl.load(first + 2), tl.load(first + 3)
        for i in tl.static_range(4):
            tl.store(first + i, tl.zeros_like(at))
    return found


@triton.jit
def count(memory, at, SHARED: tl.constexpr):
    """Add one to words, for several threads to the same if need be."""
    if SHARED:
        tl.inline_asm_elementwise(
            "red.shared.add.u32 [$1], 1; mov.b32 $0, 0;", "=r,r",
            [memory + 4 * at], tl.int32, is_pure=False, pack=1)  # fmt: skip
    else:
        tl.atomic_add(memory + at, 1, sem="relaxed", scope="cta")
