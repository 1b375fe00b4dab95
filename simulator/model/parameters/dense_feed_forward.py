"""Parameters of a dense feed-forward part."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model.architecture import DenseFeedForward
from simulator.model.parameter import Parameter, linear


def parameters(feed_forward: DenseFeedForward, hidden: int) -> Iterator[Parameter]:
    """Gate (where gated), up and down projections with their biases, for a model *hidden* wide."""
    for name in ("gate", "up") if feed_forward.gated else ("up",):
        yield from linear(f"mlp.{name}_proj", feed_forward.intermediate, hidden, "mlp", bias=feed_forward.bias)
    yield from linear("mlp.down_proj", hidden, feed_forward.intermediate, "mlp", bias=feed_forward.bias)
