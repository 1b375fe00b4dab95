"""A topology as ASTRA-sim's analytical network: one building block per layer.

ASTRA-sim counts bandwidth in GB/s of one link and direction (to the switch, to each peer, to each neighbour) and
latency in ns of one link.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.hardware.topology import Dimension

_BLOCKS = {"switch": "Switch", "mesh": "FullyConnected", "ring": "Ring"}
LATENCY_OF_LINK_S = 936.25e-9
"""Where nothing tells: what ASTRA-sim's own validated example of an HGX H100 has, end to end through an NVSwitch."""


def astra_sim(layers: Sequence[Dimension], comment: str) -> str:
    """*layers*, innermost first, as YAML with *comment* on top. Raise :exc:`ValueError` where a rate is not known."""
    kept = [layer for layer in layers if layer.size > 1] or list(layers[:1])
    if not kept:
        raise ValueError("the dump names no accelerators, which ASTRA-sim's network consists of")
    unknown = [layer.kind for layer in kept if layer.bandwidth_bytes_per_s is None]
    if unknown:
        raise ValueError(
            f"the rate of {', '.join(unknown)} is not in the dump; --accelerator NAME tells those of its links and slot"
        )
    lines = [f"# {line}" for line in comment.splitlines()]
    guessed = [layer.kind for layer in kept if layer.latency_s is None]
    if guessed:
        lines.append(f"# Assumed: the latency of {', '.join(guessed)}, as in ASTRA-sim's example of an HGX H100.")
    rates = ((layer.bandwidth_bytes_per_s or 0.0) / 1e9 for layer in kept)
    delays = ((LATENCY_OF_LINK_S if layer.latency_s is None else layer.latency_s) * 1e9 for layer in kept)
    lines += [
        f"topology: [ {', '.join(_BLOCKS[layer.shape] for layer in kept)} ]",
        f"npus_count: [ {', '.join(str(layer.size) for layer in kept)} ]",
        f"bandwidth: [ {', '.join(_decimal(rate) for rate in rates)} ]  # GB/s",
        f"latency: [ {', '.join(_decimal(delay) for delay in delays)} ]  # ns",
    ]
    return "\n".join(lines) + "\n"


def _decimal(value: float) -> str:
    rounded = f"{value:.10g}"
    return rounded if "." in rounded or "e" in rounded else f"{rounded}.0"
