"""What one iteration costs, beside what it is (`simulator/model/serving/iteration.py`)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from simulator.model.serving.iteration import Chunk, Iteration

__all__ = ["Chunk", "Iteration", "Parts", "Price"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Where an iteration's time goes on the slowest rank, in seconds."""

    attention_s: float = 0.0
    """Cores of mixers: keys and values, states and indexers' keys read, scores, choice."""
    dense_s: float = 0.0
    """Products with weights outside the routed experts."""
    experts_s: float = 0.0
    """Products with routed experts' weights."""
    exchange_s: float = 0.0
    """All-to-alls to the experts and back that nothing hides, counts and waiting for the busiest rank included."""
    tensor_parallel_s: float = 0.0
    """Collectives among the ranks that split a layer."""
    small_kernels_s: float = 0.0
    """Norms, activations, routing, sums, casts, copies."""
    head_s: float = 0.0
    """Embedding, last norm, output layer, gathering of logits, choice of a token."""
    pipeline_s: float = 0.0
    """Hand-overs between pipeline stages."""
    launch_bound_s: float = 0.0
    """The device waits for its host."""
    host_s: float = 0.0
    """It waits for what comes from host memory or drives, or for the host's cores."""

    @property
    def total_s(self) -> float:
        """All parts together."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def times(self, factor: float) -> Parts:
        """Each part *factor* times."""
        return Parts(*(getattr(self, field.name) * factor for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Price:
    """Time of one iteration."""

    parts: Parts
    """From the first kernel to the chosen tokens, through all pipeline stages."""
    interval_s: float
    """Until the next iteration, of other sequences, can follow: what the slowest pipeline stage takes. Without a
    pipeline, the iteration's own time."""
    grades: dict[str, float]
    """Seconds of kernels and transfers by what is known of them: measured, scaled, datasheet, assumed."""

    @property
    def latency_s(self) -> float:
        """From the first kernel to the chosen tokens."""
        return self.parts.total_s
