"""The part of a serving scenario that says what lies below the card, and who computes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.forecast.section import Section
from simulator.units import Bytes

Share = Annotated[float, Field(ge=0, le=1)]


class ServingDrives(Section):
    """How weights on drives are read."""

    direct: bool = Field(False, description="Cards read without their host's memory (GPUDirect Storage).")
    block: Bytes = Field(2**20, description="A request to the drives.", gt=0)
    queue_depth: Annotated[int, Field(ge=1, le=65_536)] = Field(
        32, description="Requests that each process has under way."
    )


class ServingOffload(Section):
    """What of weights and caches is in host memory or on drives. Copies share the links and the memory of the node."""

    weights: Share = Field(
        0.0,
        description=(
            "Share of the layers whose weights come to the card for every iteration, spread evenly (ZeRO-Inference, "
            "FlexGen)."
        ),
    )
    weights_on: Literal["ddr", "nvme"] = Field("ddr", description="Where they are: host memory or drives.")
    nvme: ServingDrives = ServingDrives()
    kv_cache: Share = Field(
        0.0,
        description=(
            "Share of the layers with keys and values whose caches are in host memory, and come to the card for every "
            "iteration."
        ),
    )
    prefetch: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Layers, of those that come, that come ahead of the one that is computed."
    )
    experts: Literal["cores", "fetched"] | None = Field(
        None,
        description=(
            "Routed experts are in host memory. cores: the host's cores compute them (KTransformers); fetched: those "
            "chosen come to the card. Absent: they are where other weights are."
        ),
    )
    experts_on_card: Share = Field(
        0.0, description="With that: share of each layer's experts, the most popular ones, that the card holds."
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="With experts cores: cores that each rank's process computes with."
    )
    kept_in_ddr: Bytes = Field(
        0.0,
        description=(
            "Host memory of each node for caches that its cards let go, of sequences that are sent back and, with "
            "prefix_cache, of prompts: they come back in place of being computed again (LMCache, HiCache, swapping)."
        ),
    )
    kept_on_nvme: Bytes = Field(0.0, description="With that: the same on its drives, for what host memory lets go.")
