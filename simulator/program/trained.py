"""What is trained: everything but frozen parts, or low-rank adapters beside frozen weights (LoRA: Hu et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.model.parameter import Parameter
from simulator.parallel.sharding import Adapter, local_elements


@dataclass(frozen=True, slots=True)
class Trained:
    """What is trained: all but *frozen_roles*, or adapters of *lora_rank* on the linear weights of some roles."""

    lora_rank: int | None = None
    lora_roles: frozenset[str] = frozenset()
    frozen_roles: frozenset[str] = frozenset()

    def whole(self, role: str) -> bool:
        """Whether weights of *role* are trained themselves."""
        return self.lora_rank is None and role not in self.frozen_roles

    def adapters(self, parameters: Iterable[Parameter]) -> dict[str, Adapter]:
        """The adapters among *parameters*, by the weight's name."""
        if self.lora_rank is None:
            return {}
        return {p.name: Adapter(p, self.lora_rank) for p in parameters if self._carries(p)}

    def split(self, parameters: Iterable[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
        """(frozen, trained) tensors that *parameters* and their adapters come to."""
        base = list(parameters)
        if self.lora_rank is None:
            return [p for p in base if not self.whole(p.role)], [p for p in base if self.whole(p.role)]
        return base, [factor for adapter in self.adapters(base).values() for factor in adapter.factors]

    def elements(self, parameter: Parameter, ep: int) -> int:
        """Elements that are trained for one weight on an ep rank: its own, its adapter's, or none."""
        return sum(local_elements(tensor, ep) for tensor in self.split([parameter])[1])

    def _carries(self, parameter: Parameter) -> bool:
        matrix = parameter.linear or (parameter.role == "routed_expert" and len(parameter.shape) == 3)
        return matrix and parameter.role in self.lora_roles
