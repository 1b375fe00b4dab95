"""What is measured: the shapes of every table, and about how long they take. Free of torch.

A table is a module of this package with a function `measure(shape)` that yields points; its shapes are here. `--quick`
measures every table at the sizes that layers have; without it, sizes lie twice as close.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise

Shape = tuple[int | str, ...]

GEMM_SIDES = (
    (1024, 1024), (1536, 7168), (2048, 2048), (2048, 8192), (4096, 1024), (4096, 4096), (4096, 14336), (6144, 7168),
    (7168, 2048), (7168, 12288), (8192, 8192), (8192, 28672), (14336, 4096), (16384, 16384), (32000, 4096),
    (128256, 2048), (128256, 4096), (163840, 7168), (8, 7168), (7168, 8), (128, 7168), (512, 4096),
)  # fmt: skip
"""(out, in) of the weights of a linear layer."""
GEMM_ROWS = (16, 128, 512, 1024, 2048, 4096, 8192, 16384)
EXPERTS = (
    (14, 3584, 6144), (14, 3072, 3584), (16, 7168, 4096), (32, 2048, 1536), (128, 2048, 1536), (128, 768, 2048),
    (8, 4096, 28672),
)  # fmt: skip
"""(experts on the rank, K, N) of a layer's first or second product."""
EXPERT_ROWS = (16, 64, 128, 300, 512, 1024, 2048, 4096)
"""Mean rows of an expert."""
MOST_FLOPS = 1e13
"""Larger products tell nothing new."""
ATTENTION = (
    (4, 32, 8, 64, 64, 4096), (2, 32, 4, 128, 128, 4096), (1, 32, 8, 128, 128, 2048), (1, 32, 8, 128, 128, 8192),
    (1, 32, 8, 128, 128, 32768), (1, 16, 16, 128, 128, 16384), (1, 64, 8, 128, 128, 8192), (4, 16, 8, 128, 128, 1024),
    (16, 16, 8, 64, 64, 512), (1, 96, 96, 128, 128, 8192),
    (1, 16, 16, 192, 128, 4096), (1, 64, 64, 192, 128, 4096), (2, 32, 32, 192, 128, 4096), (1, 96, 96, 192, 128, 8192),
)  # fmt: skip
"""(batch, heads, kv heads, width of queries, width of values, length); 192 and 128 is latent attention."""
FP8_PRODUCTS = (
    (16, 4096, 4096), (128, 7168, 2048), (512, 4096, 4096), (1024, 1024, 1024), (2048, 2048, 2048),
    *((rows, n, k) for rows in (4096, 8192, 16384, 32768) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))),
    *((rows, 1024, 4096) for rows in (4096, 16384)), (8192, 4096, 1024),
    *((rows, n, k) for rows in (4096, 16384) for n, k in ((8192, 8192), (28672, 8192), (8192, 28672), (1024, 8192))),
    (4096, 4096, 32768), (14336, 4096, 16384), (1024, 4096, 8192),
    (4096, 2048, 7168), (4096, 7168, 2048), (4096, 24576, 1536), (4096, 7168, 16384), (4096, 1536, 7168),
)  # fmt: skip
"""(m, n, k) of products, both operands along k in memory: linears of Llama 3 8B and 70B and DeepSeek-V3, and gradients
of their weights, whose k is the rows."""
FP8_GROUPED = (
    (8, 512, 4096, 7168), (8, 2048, 4096, 7168), (8, 2048, 7168, 2048), (32, 256, 4096, 7168), (32, 256, 7168, 2048),
)  # fmt: skip
"""(experts, rows of each, n, k)."""
OWN_KERNELS = (
    *(("kda", tokens) for tokens in (1024, 8192, 32768)), *(("kda decode", sequences) for sequences in (1, 16, 128)),
    *(("indexer", heads, 128, 2**n) for heads in (32, 64) for n in range(11, 18)),
    *(("indexer", heads, 128, 16384) for heads in (16, 128)),
    *(("sparse attention", queries, 8192) for queries in (1024, 8192)),
    ("cut loss", 8192, 4096, 128256), ("cut loss", 4096, 7168, 163840),
)  # fmt: skip
"""Name and sizes of what the project's own kernels are run on."""
LARGEST_OF_ALL = (2**25, 7 * 2**24, 2**27)
"""Elements of which a compiler makes the largest alone: it cuts these into equal parts and, of 132 compute units, 2^27
into unequal ones."""
DRIVE = tuple((way, *how) for way in ("read", "write") for how in ((4096, 1), (2**16, 32), (2**20, 32)))
"""Way, bytes of a request, requests under way."""
HOST_COPIES = tuple(2**n for n in (12, 16, 18, 20, 22, 24, 26, 28, 30))
COLLECTIVES = tuple(2**n for n in (12, 16, 20, 22, 23, 24, 25, 26, 27, 28, 29, 30))
"""Bytes of the whole buffer: what a gather ends with, a reduction begins with."""
INTERFERENCE = ("gemm 8192x8192x8192", "gemm 8192x1024x8192", "attention 32x8192x128", "add 64Mi", "cast 64Mi")
LAUNCH = ("clock", "host", "graph", "profiled")


@dataclass(frozen=True, slots=True)
class Table:
    """What one module measures in one go."""

    name: str
    """The module, and the file that holds its points."""
    shapes: tuple[Shape, ...]
    shape_s: float
    """About how long one shape takes on an H200, of which the forecast of the time left is made."""
    together: bool = False
    """By one process for each GPU, on all of them."""

    @property
    def expected_s(self) -> float:
        """About how long the table takes on an H200."""
        return self.shape_s * len(self.shapes)

    @property
    def digest(self) -> str:
        """Tells whether a stored table holds these shapes."""
        return hashlib.sha256(repr((self.name, self.shapes)).encode()).hexdigest()[:12]


def tables(*, quick: bool, gpus: int, drives: int = 0) -> tuple[Table, ...]:
    """What to measure on a machine of so many *gpus*, and of so many NVMe *drives* to write to, in order."""
    alone = (
        Table("launch", tuple((name,) for name in LAUNCH), 1.4),
        Table("elementwise", _singles(powers(16, 28, quick=quick)), 0.3),
        Table("matrix_rows", _singles(powers(4, 16, quick=quick)), 0.4),
        Table("gemm", _gemms(closer(GEMM_ROWS, quick=quick)), 0.12),
        Table("grouped_gemm", _grouped(closer(EXPERT_ROWS, quick=quick)), 0.14),
        Table("attention", ATTENTION, 0.8),
        Table("loss", _singles((1024, 4096, 16384)), 0.5),
        Table("tensor_lists", (("adamw", "fp32"), ("adamw", "bf16"), ("copies", "bf16")), 1.0),
        Table("router", ((8192, 128, 8), (8192, 256, 8), (8192, 896, 16), (16384, 64, 8), (8192, 8, 2)), 0.2),
        Table("fp8_products", (*FP8_PRODUCTS, *FP8_GROUPED), 0.2),
        Table("fp8_casts", _casts(powers(18, 28, quick=quick, step=2)), 4.0),
        Table("sustained", (("layer",),), 5.0),
        Table("own_kernels", OWN_KERNELS, 1.6),
        Table("host_copies", (*_singles(HOST_COPIES), ("at once", 2**30)), 1.0),
    )
    several = (
        Table("collectives", _among(closer(COLLECTIVES, quick=quick), gpus), 0.5, together=True),
        Table("interference", tuple((name,) for name in INTERFERENCE), 0.5, together=True),
    )
    local = (Table("drive", DRIVE, 5.0),)
    return alone + (local if drives else ()) + (several if gpus > 1 else ())


def powers(first: int, last: int, *, quick: bool, step: int = 1) -> tuple[int, ...]:
    """Powers of two; without *quick* their geometric means, too."""
    return closer(tuple(2**n for n in range(first, last + 1, step)), quick=quick)


def closer(sizes: tuple[int, ...], *, quick: bool) -> tuple[int, ...]:
    """*sizes*; without *quick* with one between each two, a multiple of 4096 or 16 where they are.

    Buffers of collectives are: a part that does not begin at 16 bytes takes 2.2 to 2.6 times as long to another rank
    (NCCL 2.28.9, two H200, 11 to 760 MB), which no row of an expert does.
    """
    if quick:
        return sizes
    grain = next(grain for grain in (4096, 16, 4) if grain == 4 or all(size % grain == 0 for size in sizes))
    between = (round((a * b) ** 0.5 / grain) * grain for a, b in pairwise(sizes))
    return tuple(sorted({*sizes, *between}))


def _singles(sizes: tuple[int, ...]) -> tuple[Shape, ...]:
    return tuple((size,) for size in sizes)


def _among(sizes: tuple[int, ...], gpus: int) -> tuple[Shape, ...]:
    """(bytes, ranks): among all GPUs, and among as many of the first as are a power of two."""
    groups = {gpus, *(2**n for n in range(1, gpus.bit_length()) if 2**n <= gpus)}
    return tuple((size, ranks) for ranks in sorted(groups) for size in sizes)


def _casts(sizes: tuple[int, ...]) -> tuple[Shape, ...]:
    """(elements, what is measured of them)."""
    return (*((size, "all") for size in sizes), *((size, "amax") for size in LARGEST_OF_ALL if size not in sizes))


def _gemms(rows: tuple[int, ...]) -> tuple[Shape, ...]:
    """(rows, out, in)."""
    shapes = ((m, out, inner) for out, inner in GEMM_SIDES for m in rows)
    return tuple(shape for shape in shapes if 2.0 * shape[0] * shape[1] * shape[2] <= MOST_FLOPS)


def _grouped(rows: tuple[int, ...]) -> tuple[Shape, ...]:
    """(experts, mean rows, K, N, how the rows are shared out)."""
    shapes = ((experts, mean, inner, out) for experts, inner, out in EXPERTS for mean in rows)
    few = (s for s in shapes if 2.0 * s[0] * s[1] * s[2] * s[3] <= MOST_FLOPS)
    return tuple((*shape, way) for shape in few for way in ("even", "skewed"))
