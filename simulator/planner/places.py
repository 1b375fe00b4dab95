"""Places: the layers of a model and the prediction modules behind them, as the planner counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.model.architecture import Architecture, Layer
from simulator.model.operator import Operator, Workload
from simulator.model.operators.layers import listed_operators
from simulator.model.operators.multi_token_prediction import module_parts
from simulator.model.parameter import Parameter
from simulator.model.parameters import layer_parameters, mtp_module_parameters


@dataclass(frozen=True, slots=True)
class Place:
    """A layer, or the layers of a multi-token-prediction *module*."""

    layers: tuple[Layer, ...]
    module: bool = False

    @property
    def make(self) -> Place:
        """What all places of one make have in common."""
        return replace(self, layers=tuple(replace(layer, index=0) for layer in self.layers))

    def parts(self, architecture: Architecture, workload: Workload) -> list[tuple[Operator, ...]]:
        """Its operators in forward order, in the parts that `plan_layer` takes."""
        if self.module:
            parts = module_parts(architecture, self.layers, workload, keeps_hidden=False)
            return [operators for _, operators in parts]
        return [listed_operators(architecture, self.make.layers[0], workload)]

    @property
    def streams(self) -> int:
        """Residual streams of its input; a module keeps its embedding for running again."""
        return 1 if self.module else self.layers[0].hyper_connections

    def parameters(self, own: Architecture, tp: int) -> tuple[Parameter, ...]:
        """Its weights as one of *tp* ranks holds the model."""
        return (
            mtp_module_parameters(own, tp) if self.module else layer_parameters(own, own.layers[self.layers[0].index])
        )


def places(architecture: Architecture) -> tuple[Place, ...]:
    """All places of *architecture*."""
    modules = (Place(module, module=True) for module in architecture.mtp_modules())
    return *(Place((layer,)) for layer in architecture.layers), *modules
