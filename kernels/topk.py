"""The best of each row of given scores, in one pass over them.

A program streams a row, a block at a time. Scores that beat the row's bound go to the end of a list; a list that a
block would overflow is cut down to its TOP best first, whose least is the new bound. So a list doubles before each cut,
and a row is cut about log2(S / TOP) times and read once. A cut finds the least of the best by digits, as radix
selection does: it counts the keys by their first digit, then, of those with the digit that the least has, by the next,
and stops where all that have a digit are among the best. The selection is exact; of scores equal to the least it takes
those that come first in the list.

Rows that are too few to fill the GPU are cut into parts, whose best are the scores of a second run.

This is what stacks run that store the scores of their indexer, and so does `kernels.indexer_stored`. Public kernels
count digits in shared memory, too, and read a row once for each of the first two digits.

Legend: T rows, S scores of a row, C threads, B scores of one block, K chosen, N entries of a list, each a key and a
place: 2 N words, behind them counts of the D values of a digit and of keys that share no digit, then TOTAL and FOUND.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.device import multiprocessors
from kernels.program_memory import (
    MOST_BYTES,
    clear_four,
    count,
    place,
    program_memory,
    put,
    put_two_under,
    take,
    take_two,
)

MOST = 2**12
"""Most scores that can be chosen: of twice as many, and one more, each of 512 threads holds 17."""
SIDE = 2**11
"""Fewest scores of a block."""
THREADS = 256
"""Threads of a program, at least; more where each would hold more than 17 entries of a list."""
DIGIT = tl.constexpr(11)
D = tl.constexpr(2**DIGIT.value)
TOTAL, FOUND = tl.constexpr(D.value + 1), tl.constexpr(D.value + 2)
NONE = tl.constexpr(0xFF80_0000)
"""Key of minus infinity, which is no score."""
PROGRAMS_PER_MULTIPROCESSOR = 4
LAUNCH = {"maxnreg": 64}


@triton.jit
def _score(key, BITS: tl.constexpr):
    """A score of a key."""
    bits = (key << (32 - BITS)).to(tl.int32, bitcast=True)
    return (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _block(score_ptr, at, end, C: tl.constexpr, G: tl.constexpr):
    """G * C scores from *at* on, G a thread; minus infinity from *end* on."""
    scores = ()
    at_C = score_ptr + at + tl.arange(0, C)
    for g in tl.static_range(G):
        here_C = tl.arange(0, C) + at < end - g * C
        scores += (tl.load(at_C + g * C, mask=here_C, other=-float("inf")),)
    return scores


@triton.jit
def _entries(scores, at, BITS: tl.constexpr):
    """Keys and places of a block.

    Keys are unsigned integers of BITS bits in the opposite order of the scores: the best has the least.
    """
    C: tl.constexpr = scores[0].shape[0]
    keys, places = (), ()
    for g in tl.static_range(len(scores)):
        bits_C = scores[g].to(tl.float32).to(tl.int32, bitcast=True)
        keys += ((bits_C ^ (~(bits_C >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) >> (32 - BITS),)
        places += (tl.arange(0, C) + (at + g * C),)
    return keys, places


@triton.jit
def _list(memory, held, C: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, SHARED: tl.constexpr):
    """Keys and places of the *held* entries of a list; behind them the last of all keys."""
    keys, places = (), ()
    tl.debug_barrier()
    for g in tl.static_range(N // C):
        key_C, place_C = take_two(memory, 2 * tl.arange(0, C), 2 * g * C, SHARED)
        key_C = key_C.to(tl.uint32, bitcast=True)
        keys += (tl.where(tl.arange(0, C) < held - g * C, key_C, 0xFFFFFFFF >> (32 - BITS)),)
        places += (place_C,)
    return keys, places


@triton.jit
def _before(memory, each_C, N: tl.constexpr, SHARED: tl.constexpr):
    """(sums over the threads before each, sum over all)."""
    c_C = tl.arange(0, each_C.shape[0])
    upto_C = tl.cumsum(each_C, 0)
    put(memory, 2 * N + TOTAL + c_C * 0, upto_C, c_C == each_C.shape[0] - 1, SHARED)
    tl.debug_barrier()
    return upto_C - each_C, take(memory, 2 * N + TOTAL, SHARED)


@triton.jit
def _value(memory, need, C: tl.constexpr, N: tl.constexpr, SHARED: tl.constexpr):
    """(value of a digit of the last of the *need* best, how many of them have it, whether no others have)."""
    c_C = tl.arange(0, C)
    counts, sum_C = (), tl.zeros([C], tl.int32)
    tl.debug_barrier()
    for j in tl.static_range(0, D // C, 4):
        counts += clear_four(memory, c_C * (D // C), 2 * N + j, SHARED)
    for j in tl.static_range(D // C):
        sum_C += counts[j]
    left_C = need - (tl.cumsum(sum_C, 0) - sum_C)
    upto_C, below_C, value_C = tl.zeros([C], tl.int32), tl.zeros([C], tl.int32), c_C * (D // C)
    whole_C = tl.zeros([C], tl.int1)
    for j in tl.static_range(D // C):
        upto_C += counts[j]
        past_C = upto_C < left_C
        value_C += past_C.to(tl.int32)
        below_C = tl.where(past_C, upto_C, below_C)
        whole_C = whole_C | (upto_C == left_C)
    found_C = (value_C << 16) | ((left_C - below_C) << 1) | whole_C.to(tl.int32)
    put(memory, 2 * N + FOUND + c_C * 0, found_C, (left_C > 0) & (left_C <= sum_C), SHARED)
    tl.debug_barrier()
    found = take(memory, 2 * N + FOUND, SHARED)
    return found >> 16, (found >> 1) & 0x7FFF, found & 1


@triton.jit
def _edge(memory, keys, TOP: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, SHARED: tl.constexpr):
    """(edge, equals): the TOP best are those of keys under *edge* and *equals* of those at it."""
    C: tl.constexpr = keys[0].shape[0]
    low, shift, values = tl.cast(0, tl.uint32), tl.cast(BITS - DIGIT, tl.int32), tl.cast(D, tl.uint32)
    need, whole, more = tl.cast(TOP, tl.int32), tl.cast(0, tl.int32), True
    while more:
        for g in tl.static_range(len(keys)):
            value_C = tl.minimum((keys[g] - low) >> shift, values)
            count(memory, 2 * N + value_C.to(tl.int32, bitcast=True), SHARED)
        value, need, whole = _value(memory, need, C, N, SHARED)
        low += value.to(tl.uint32) << shift
        more = (whole == 0) & (shift > 0)
        if more:
            values = tl.where(shift > DIGIT, D, 1 << shift).to(tl.uint32)
            shift = tl.maximum(shift - DIGIT, 0)
    edge, none = low + (whole.to(tl.uint32) << shift), tl.cast(NONE >> (32 - BITS), tl.uint32)
    equals = tl.where((whole == 0) & (edge < none), need, 0)
    return tl.minimum(edge, none), equals


@triton.jit
def _counts(keys, limit):
    """How many of each thread's keys are under *limit*."""
    each_C = tl.zeros([keys[0].shape[0]], tl.int32)
    for g in tl.static_range(len(keys)):
        each_C += (keys[g] < limit).to(tl.int32)
    return each_C


@triton.jit
def _append(memory, first_C, keys, places, limit, SHARED: tl.constexpr):
    """Put each thread's entries under *limit* at place *first_C* of the list and behind it."""
    next_C = place(memory, 2 * first_C, SHARED)
    for g in tl.static_range(len(keys)):
        next_C = put_two_under(limit, next_C, keys[g], places[g], SHARED)


@triton.jit
def _without(memory, keys, edge, equals, N: tl.constexpr, SHARED: tl.constexpr):
    """Keys of which only the first *equals* of those at *edge* are still there; the others are raised by one."""
    equals_C = _counts(keys, edge + 1) - _counts(keys, edge)
    before_C, _ = _before(memory, equals_C, N, SHARED)
    left_C, kept = equals - before_C, ()
    for g in tl.static_range(len(keys)):
        equal_C = keys[g] == edge
        kept += (keys[g] + (equal_C & (left_C <= 0)).to(tl.uint32),)
        left_C -= equal_C.to(tl.int32)
    return kept


@triton.jit
def _cut(memory, keys, places, TOP: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, SHARED: tl.constexpr):
    """Make the TOP best of some entries the list: (how many there are, the key that others must be under)."""
    edge, equals = _edge(memory, keys, TOP, N, BITS, SHARED)
    if equals > 0:
        keys = _without(memory, keys, edge, equals, N, SHARED)
    limit = edge + (equals > 0).to(tl.uint32)
    before_C, held = _before(memory, _counts(keys, limit), N, SHARED)
    _append(memory, before_C, keys, places, limit, SHARED)
    return held, edge


@triton.jit
def _write(memory, held, from_ptr, out_ptr, best_ptr, TOP: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr,
           SHARED: tl.constexpr):  # fmt: skip
    """The places of a list, or what *from_ptr* holds at them, and the scores if *best_ptr* is there."""
    tl.debug_barrier()
    for k in tl.static_range(0, TOP, C):
        k_C = k + tl.arange(0, C)
        key_C, place_C = take_two(memory, 2 * tl.arange(0, C), 2 * k, SHARED)
        if from_ptr is not None:
            place_C = tl.load(from_ptr + place_C, mask=k_C < held, other=-1)
        tl.store(out_ptr + k_C, tl.where(k_C < held, place_C, -1), mask=k_C < TOP)
        if best_ptr is not None:
            score_C = tl.where(k_C < held, _score(key_C.to(tl.uint32, bitcast=True), BITS), -float("inf"))
            tl.store(best_ptr + k_C, score_C, mask=k_C < TOP)


@triton.jit(do_not_specialize=["rows", "S", "past", "parts", "length"])
def _best(score_ptr, from_ptr, scratch_ptr, out_ptr, best_ptr, rows, S, past, parts, length, TOP: tl.constexpr,
          C: tl.constexpr, N: tl.constexpr, B: tl.constexpr, BITS: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    """The best of each part of each row; row *t* has past + t + 1 scores, S at most, and a part *length* of them."""
    memory = program_memory(scratch_ptr, 2 * N + D + 4, SHARED)
    for j in tl.static_range(0, D // C, 4):
        _ = clear_four(memory, tl.arange(0, C) * (D // C), 2 * N + j, SHARED)
    tl.debug_barrier()
    for turn in range(tl.program_id(0), rows * parts, tl.num_programs(0)):
        row, begin = turn // parts, turn % parts * length
        end = tl.minimum(tl.minimum(S, past + row + 1), begin + length)
        row_ptr = score_ptr + tl.cast(row, tl.int64) * S
        first, first_places = _entries(_block(row_ptr, begin, end, C, N // C), begin, BITS)
        held, edge = _cut(memory, first, first_places, TOP, N, BITS, SHARED)
        scores = _block(row_ptr, begin + N, end, C, B // C)
        for at in range(begin + N, end, B):
            keys, places = _entries(scores, at, BITS)
            before_C, found = _before(memory, _counts(keys, edge), N, SHARED)
            if held + found > N:
                listed, their_places = _list(memory, held, C, N, BITS, SHARED)
                held, edge = _cut(memory, listed, their_places, TOP, N, BITS, SHARED)
                before_C, found = _before(memory, _counts(keys, edge), N, SHARED)
            scores = _block(row_ptr, at + B, end, C, B // C)
            _append(memory, held + before_C, keys, places, edge, SHARED)
            held += found
        if held > TOP:
            listed, their_places = _list(memory, held, C, N, BITS, SHARED)
            held, edge = _cut(memory, listed, their_places, TOP, N, BITS, SHARED)
        whose = None if from_ptr is None else from_ptr + tl.cast(row, tl.int64) * S
        best = None if best_ptr is None else best_ptr + tl.cast(turn, tl.int64) * TOP
        _write(memory, held, whose, out_ptr + tl.cast(turn, tl.int64) * TOP, best, TOP, C, BITS, SHARED)


def _run(score_TS: torch.Tensor, place_TS: torch.Tensor | None, top: int, past: int, parts: int,
         bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """([T, parts * top] places of the best of each part of each row, and their scores if there are several parts).

    Of scores with places the result has these instead of their own.
    """
    (T, S), device = score_TS.shape, score_TS.device
    B = max(top, SIDE)
    C = min(max(THREADS, B // 8), B)
    N = 2 * B + C
    words = 2 * N + D.value + 4
    shared = score_TS.is_cuda and 4 * words <= MOST_BYTES
    programs = T * parts if shared else min(T * parts, PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(score_TS))
    scratch = None if shared else torch.empty(programs, words, dtype=torch.int32, device=device)
    out_TK = torch.empty(T, parts * top, dtype=torch.int32, device=device)
    best_TK = None if parts == 1 else torch.empty(T, parts * top, device=device)
    sides = {"TOP": top, "C": C, "N": N, "B": B, "BITS": bits, "SHARED": shared, "num_warps": max(1, C // 32)}
    arguments = (score_TS, place_TS, scratch, out_TK, best_TK, T, S, past, parts, triton.cdiv(S, parts))
    _best[(programs,)](*arguments, **sides, **LAUNCH)
    return out_TK, best_TK


def parts_of_rows(rows: int, scores: int, top: int, programs: int) -> int:
    """Parts of each row: as many as fill *programs*, up to where a second run over their best takes as long as a part.

    A part has twice as many scores as a list holds at least.
    """
    most = min(programs // rows, math.isqrt(scores // (2 * max(top, SIDE))))
    return 1 << max(0, most.bit_length() - 1)


def best(score_TS: torch.Tensor, top: int, past: int | None = None) -> torch.Tensor:
    """[T, top] int32: places of the *top* largest of each row, in no order; -1 where a row has fewer.

    With *past*, row t counts its first past + t + 1 scores, as a query does that sees no later key; else all. Scores
    are fp32, or bf16; those of minus infinity are never chosen.
    """
    T, S = score_TS.shape
    if top & (top - 1) or not 2 <= top <= MOST:
        raise ValueError(f"top is {top}, not a power of two up to {MOST}")
    if score_TS.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"scores are {score_TS.dtype}, not float32 or bfloat16")
    bits = 8 * score_TS.element_size()
    parts = parts_of_rows(T, S, top, PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(score_TS))
    out_TK, best_TK = _run(score_TS.contiguous(), None, top, S if past is None else past, parts, bits)
    return out_TK if best_TK is None else _run(best_TK, out_TK, top, parts * top, 1, bits)[0]
