"""The part of the scenario that says which experts tokens visit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.forecast.section import Section


class Synthetic(Section):
    """A seeded synthetic routing table: expert popularity follows a log-normal law."""

    sigma: Annotated[float, Field(ge=0, le=5)] = Field(description="Spread of log popularity; 0 is balanced.")


class Balancing(Section):
    """A policy that spreads the experts' load."""

    name: str = Field(description="A file of simulator/routing/policies.", examples=["eplb"])
    planned_on: str | None = Field(None, description="Trace that its plan is made from; absent: the one replayed.")
    replan_every: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description=(
            "Steps between plans, each made from the step before; absent: the plan is always of what is replayed."
        ),
    )
    options: dict[str, float | int | bool | str] = Field({}, description="The policy's own settings.")


class Drift(Section):
    """Popularity that wanders around where it began, its distribution kept (an Ornstein-Uhlenbeck process)."""

    spread: Annotated[float, Field(gt=0, le=5)] = Field(
        description="Standard deviation of an expert's log popularity around its long-run mean."
    )
    persistence: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="Of an expert's deviation, what is left one step later."
    )


class Routing(Section):
    """Which experts the tokens visit: a recorded trace, a synthetic table or a named workload, as it is or balanced."""

    trace: str | None = Field(None, description="Recorded expert counts: a file of scenarios/traces, by name or path.")
    synthetic: Synthetic | None = None
    workload: (
        Literal[
            "W0_balanced",
            "W1_hot_expert_set",
            "W2_hot_rank",
            "W3_spread_hot_experts",
            "W4_source_ragged",
            "W5_zero_expert_rank",
            "W6_rotating_hotspot",
            "W7_burst",
        ]
        | None
    ) = Field(None, description="A workload of Megatron-LM's benchmark of schedulers; layers route alike.")
    drift: Literal["recorded"] | Drift | None = Field(
        None, description="recorded: as the trace's windows change; or a law. Absent: popularity stands still."
    )
    drift_between: Literal["steps", "micro_batches"] = Field(
        "steps", description="What a window of the trace, or a move of the law, stands for."
    )
    step: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="Which step of the drift, or of the workload (W6 and W7 change with it), is forecast."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Decides all chance in the routing table.")
    policy: Balancing | None = Field(None, description="Absent: experts stay where they are, in order.")
