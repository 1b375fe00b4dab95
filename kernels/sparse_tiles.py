"""How the kernels of sparse attention cut their work: heads in two parts, channels in steps, queries in batches.

Legend: T queries, H heads, J chosen keys, C channels, K channels of one step, X and Y the two parts of a program's
heads, W the heads of all programs of a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

CHANNELS = 64
PART = 64
SMALLEST_PART = 16
FEWEST_KEYS = 16
HOPPER_PART, MOST_HOPPER_HEADS, FEWEST_HOPPER_KEYS = 32, 128, 128
WORKSPACE_BYTES = 2**30
LOG2_E = 1.4426950408889634


@triton.jit
def part_of_heads(ptr, row, h_X, H, C: tl.constexpr, k_K):
    """[X, K]: some of the C channels of some heads, whose rows start at *row*; heads past the last are zeros."""
    at_XK = ptr + ((row + h_X) * C)[:, None] + k_K[None, :]
    return tl.load(at_XK, mask=(h_X < H)[:, None], other=0.0)


@dataclass(frozen=True, slots=True)
class Parts:
    """Programs per query and the two parts of heads in each: 64 + 32 of 96 heads, 64 + 64 of 128."""

    programs: int
    x: int
    y: int

    @property
    def width(self) -> int:
        """Heads of all programs of a query."""
        return self.programs * (self.x + self.y)


def parts(H: int) -> Parts:
    """The fewest heads past the last, as far as two powers of two go."""
    x = max(SMALLEST_PART, min(PART, triton.next_power_of_2(H) // 2))
    y = max(SMALLEST_PART, min(x, triton.next_power_of_2(max(H - x, 1))))
    return Parts(triton.cdiv(H, x + y), x, y)


def step(channels: int) -> int:
    """Channels of one step of a product over *channels*, which sixteen divides."""
    return min(CHANNELS, channels & -channels)


def batch(T: int, heads: Parts, J: int, tensors: int, element_bytes: int) -> int:
    """Queries of each of the fewest alike batches whose *tensors* of J x W elements fit in `WORKSPACE_BYTES`."""
    most = max(1, WORKSPACE_BYTES // (tensors * J * heads.width * element_bytes))
    return max(1, triton.cdiv(T, max(1, triton.cdiv(T, most))))


def on_hopper(rows: torch.Tensor, latent: int, J: int) -> bool:
    """Whether the kernels for Hopper take rows: of 512 + 64 bf16 channels on such a GPU, 128 chosen and more."""
    fits = latent == 512 and rows.shape[-1] == 576 and rows.dtype == torch.bfloat16 and J >= FEWEST_HOPPER_KEYS
    return fits and rows.is_cuda and torch.cuda.get_device_capability(rows.device) == (9, 0)


def parts_on(rows: torch.Tensor, H: int, latent: int, J: int) -> Parts:
    """The parts of heads that choose from these rows: on Hopper multiples of 32 as far as 128 heads."""
    if on_hopper(rows, latent, J) and H <= MOST_HOPPER_HEADS:
        return parts(triton.cdiv(H, HOPPER_PART) * HOPPER_PART)
    return parts(H)


def hopper_widths(heads: Parts) -> tuple[int, ...]:
    """Columns of each product on Hopper, powers of two."""
    return (heads.x, heads.y) if heads.x != heads.y else (heads.width,)


def check(q_THC: torch.Tensor, kv_SC: torch.Tensor, index_TJ: torch.Tensor, latent: int) -> None:
    """Raise a ValueError that says which of the inputs cannot be tiled or do not go together."""
    (T, _, channels), J = q_THC.shape, index_TJ.shape[1]
    sides = {"latent": latent, "rope": channels - latent, "chosen keys": J}
    wrong = [f"{name} is {side}" for name, side in sides.items() if side < 1 or side & (side - 1)]
    if q_THC.is_cuda and J < FEWEST_KEYS:
        wrong.append(f"chosen keys is {J}, a GPU takes {FEWEST_KEYS} at least")
    if len(index_TJ) != T or kv_SC.shape[1] != channels:
        wrong.append(f"q is {tuple(q_THC.shape)}, kv is {tuple(kv_SC.shape)}, index is {tuple(index_TJ.shape)}")
    if wrong:
        raise ValueError("; ".join(wrong))
