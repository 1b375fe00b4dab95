"""Muon: the momentum of every hidden matrix, orthogonalised; AdamW for embeddings, head, norms and biases.

One momentum a matrix element. Five Newton-Schulz steps on X, the matrix in bf16 with the shorter side as rows (m by n):
A = X X^T, B = b A + c A A, X = a X + B X, which is 4 m^2 n + 2 m^3 FLOPs each (Jordan, 2024; Moonlight,
arXiv:2502.16982). Kernels and temporaries are those of `torch.optim.Muon` in PyTorch 2.11, matrix by matrix: each sum
is a copy of the first summand and a product that adds to it, and the update, two generations of X and two of A's size
exist at once. Measured on H200 for 2048 x 8192 and 4096 x 14336: 117.4 and 419.4 MB, which is 3 m n + 2 m^2 in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.model.operator import Kernel
from simulator.parallel.sharding import Matrix
from simulator.program.costs import Priced
from simulator.program.emitter import allocation
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.optimizer import Optimizer
from simulator.program.update import Update

NAME = "muon"
STEPS = 5
_EDGE_KERNELS = 4
"""Norm, its bound, the division by it, and a copy."""


def moments(elements: float, matrix: bool, optimizer: Optimizer) -> tuple[float, ...]:
    """The momentum of a matrix, and AdamW's two moments of anything else."""
    return (elements * optimizer.moment_bytes,) * (1 if matrix else 2)


def write(update: Update) -> None:
    """Momentum, orthogonalisation where the whole matrix is, its result on the parameters; then AdamW."""
    hidden = [tensor for tensor in update.owned if tensor.matrix]
    others = [tensor for tensor in update.owned if not tensor.matrix]
    if hidden:
        stored, moment = update.optimizer.stored_bytes, update.optimizer.moment_bytes
        launches = len(hidden)
        elements = sum(tensor.elements for tensor in hidden)
        # Gradient and momentum read, momentum written; both read again, their mixture written.
        _each(update, "momentum", elements * (3 * stored + 3 * moment), 2 * launches)
        _travel(update, "gather matrices")
        _orthogonalise(update)
        _travel(update, "scatter updates")
        # The decay reads and writes parameters, the step reads them and the update, and writes them.
        _each(update, "step", elements * (4 * stored + COMPUTE_BYTES), 2 * launches)
    if others:
        update.sweep("optimizer", others, "optimizer", update.optimizer.sweep_bytes)


def _each(update: Update, name: str, traffic: float, launches: int) -> None:
    """Kernels over each matrix's part."""
    priced = update.costs.price(Kernel("elementwise", 0.0, float(traffic), dtype=update.dtype))
    update.emitter.compute(name, "optimizer", replace(priced, launches=launches))


def _travel(update: Update, name: str) -> None:
    """Rows of matrices on their way to the rank in charge, or updates on their way back, in bf16."""
    for axis, elements in update.ownership.travelling:
        transfer = update.network.shuffle(axis, elements * COMPUTE_BYTES)
        if transfer is not None:
            position = update.emitter.transfer(name, "muon", transfer.kind, transfer, deps=(update.emitter.last,))
            update.emitter.await_(position)


def _orthogonalise(update: Update) -> None:
    """The matrices that the rank is in charge of, one after the other."""
    matrices = update.ownership.matrices
    largest = max((scratch_bytes(matrix, update.optimizer.stored_bytes) for matrix in matrices), default=0.0)
    gathered = COMPUTE_BYTES * sum(m.elements for m in matrices) if update.ownership.travelling else 0
    total = sum((_priced(update, matrix) for matrix in matrices), Priced(0, 0, "measured"))
    taken = [
        allocation("optimizer.gathered matrices", "workspace", float(gathered)),
        allocation("optimizer.scratch", "workspace", largest),
    ]
    update.emitter.compute("Newton-Schulz", "gemm", total, allocates=taken)
    update.emitter.release(*(item.key for item in taken if update.emitter.holds(item.key)))


def _priced(update: Update, matrix: Matrix) -> Priced:
    """Time of all matrices of one shape."""
    one = sum((update.costs.price(kernel) for kernel in newton_schulz(matrix)), Priced(0, 0, "measured"))
    return Priced(one.duration_ns * matrix.count, (one.launches + _EDGE_KERNELS) * matrix.count, one.grade)


def newton_schulz(matrix: Matrix) -> Iterator[Kernel]:
    """Kernels of the orthogonalisation of one matrix of this shape."""
    m, n = sorted((matrix.rows, matrix.columns))
    whole, square = float(COMPUTE_BYTES * m * n), float(COMPUTE_BYTES * m * m)
    yield Kernel("reduction", 0.0, whole)
    yield Kernel("elementwise", 0.0, 2 * whole)
    for _ in range(STEPS):
        yield Kernel("gemm", 2.0 * m * m * n, 2 * whole + square, shape=(m, m, n))
        yield Kernel("copy", 0.0, 2 * square)
        yield Kernel("gemm", 2.0 * m * m * m, 4 * square, shape=(m, m, m))
        yield Kernel("copy", 0.0, 2 * whole)
        yield Kernel("gemm", 2.0 * m * m * n, 3 * whole + square, shape=(m, n, m))


def scratch_bytes(matrix: Matrix, stored_bytes: int) -> float:
    """Temporaries while one matrix of this shape is orthogonalised: its update, two of X, two of A's size."""
    m, n = sorted((matrix.rows, matrix.columns))
    return float(stored_bytes * m * n + COMPUTE_BYTES * (2 * m * n + 2 * m * m))
