"""Sums over operators that the tests of operators share."""

from collections.abc import Iterable
from pathlib import Path

from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.model.config import read_architecture
from simulator.model.operator import Kernel, Operator

MODELS = Path(__file__).parents[1] / "scenarios" / "models"
PRODUCTS = ("gemm", "grouped_gemm")


def model(name: str) -> Architecture:
    return read_architecture(MODELS / f"{name}.json")


def named(operators: Iterable[Operator], *names: str) -> list[Operator]:
    found = [operator for operator in operators if operator.name in names]
    assert {operator.name for operator in found} == set(names)
    return found


def one(operators: Iterable[Operator], name: str) -> Operator:
    (found,) = named(operators, name)
    return found


def kernels(operator: Operator) -> tuple[Kernel, ...]:
    return operator.forward + operator.backward + operator.backward_weight


def forward_flops(
    operators: Iterable[Operator], *, routed_rows: float = 0.0, kinds: tuple[str, ...] = PRODUCTS
) -> float:
    """FLOPs of the forward kernels of *kinds*; those per routed row count *routed_rows* times."""
    return sum(
        kernel.flops * (routed_rows if operator.rows == "routed" else 1)
        for operator in operators
        for kernel in operator.forward
        if kernel.kind in kinds
    )


def saved_bytes(operators: Iterable[Operator], *, routed_rows: float = 0.0, trained: bool = True) -> float:
    """What autograd keeps of one layer, with all weights trained or all frozen."""
    return sum(
        tensor.bytes * (routed_rows if operator.rows == "routed" else 1)
        for operator in operators
        for tensor in operator.saved
        if trained or tensor.needed_for == "input_gradient"
    )


def top_k(architecture: Architecture) -> int:
    part = next(architecture.moe_layers()).feed_forward
    assert isinstance(part, MixtureOfExperts)
    return part.top_k
