from pathlib import Path

import pytest

from simulator.model.architecture import Architecture, Layer
from simulator.model.config import read_architecture
from simulator.model.operator import Execution, Operator, Workload
from simulator.model.operators.layers import (
    embedding_operators,
    layer_operators,
    loss_operators,
    vision_operators,
)
from simulator.model.parameter import Parameter
from simulator.model.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    vision_parameters,
)

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "scenarios" / "models").glob("*.json"))
ORIGINALS = sorted((ROOT.parent / "shared" / "facts" / "hf_configs").glob("*.json"))
EXECUTIONS: tuple[Execution, ...] = ("eager", "compiled", "fused")


def makes(architecture: Architecture) -> list[Layer]:
    """One layer of each make."""
    return list({(layer.mixer, layer.feed_forward): layer for layer in architecture.layers}.values())


def names(operators: tuple[Operator, ...]) -> set[str]:
    return {weight for operator in operators for weight in operator.weights}


def check(operators: tuple[Operator, ...], parameters: tuple[Parameter, ...]) -> None:
    used, held = names(operators), {parameter.name for parameter in parameters}
    assert used - held == set()
    assert held - used == set()


def check_model(path: Path, execution: Execution) -> None:
    architecture = read_architecture(path)
    workload = Workload((96, 32), execution, image_patches=(64, 16))
    for layer in makes(architecture):
        check(layer_operators(architecture, layer, workload), layer_parameters(architecture, layer))
    check(embedding_operators(architecture, workload), embedding_parameters(architecture))
    for variant in ("plain", "chunked", "cut"):
        used = names(loss_operators(architecture, workload, variant))
        held = {p.name for p in (*head_parameters(architecture), *embedding_parameters(architecture))}
        assert used <= held
        assert {p.name for p in head_parameters(architecture)} <= used
    check(vision_operators(architecture, workload), vision_parameters(architecture))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_operators_of_a_shipped_model_use_its_parameters_and_no_others(path: Path, execution: Execution) -> None:
    check_model(path, execution)


@pytest.mark.skipif(not ORIGINALS, reason="no original config.json files beside the checkout")
def test_operators_of_every_original_model_use_its_parameters_and_no_others() -> None:
    for path in ORIGINALS:
        check_model(path, "fused")
