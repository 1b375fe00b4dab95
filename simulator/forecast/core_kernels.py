"""Which models have cores whose kernels a scenario may choose, and what rules a choice out."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario
from simulator.model.architecture import Architecture, KimiDeltaAttention, LatentAttention, Mixer


def core_kernel_problems(scenario: Scenario, architecture: Architecture) -> Iterator[str]:
    """Why the model or the split has no such cores."""
    asked, where = scenario.training.core_kernels, "training.core_kernels"
    if asked is None:
        return
    mixers = [layer.mixer for layer in architecture.layers if layer.mixer is not None]
    if not any(_has_core_kernels(mixer) for mixer in mixers):
        yield (
            f"{where}: found {asked}, but {architecture.model_type} has neither Kimi delta attention nor sparse latent "
            "attention; leave it out"
        )
    if asked == "small_operators" and scenario.parallel.cp > 1:
        yield f"parallel.cp: found {scenario.parallel.cp}, but {where}: {asked} splits no sequence; allowed: 1"


def _has_core_kernels(mixer: Mixer) -> bool:
    sparse = isinstance(mixer, LatentAttention) and mixer.indexer is not None
    return sparse or isinstance(mixer, KimiDeltaAttention)
