"""What a routing and a balancing policy make of the experts' load, for any expert-parallel degree and batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from simulator.forecast.image_batches import ImageBatches
from simulator.forecast.popularity import Popularity
from simulator.forecast.scenario import Scenario
from simulator.forecast.scenario_routing import Balancing
from simulator.model.architecture import Architecture, MixtureOfExperts
from simulator.routing.outcome import Outcome, Setting, joined
from simulator.routing.policies import apply_policy
from simulator.routing.table import IntArray, RoutingTable
from simulator.routing.workloads import Shape, ragged_tokens

MOST_UNLIKE = 8
"""Micro-batches of a step that are told apart; those after them are like the first ones again."""


class ExpertRouting:
    """The routing of a model that has experts; traces are read once."""

    def __init__(self, scenario: Scenario, architecture: Architecture, folder: Path, ranks_per_node: int) -> None:
        parts = [layer.feed_forward for layer in architecture.moe_layers()]
        assert isinstance(parts[0], MixtureOfExperts)
        self._experts, self._top_k = parts[0].experts, parts[0].top_k
        self._asked, self._training, self._ranks_per_node = scenario.routing, scenario.training, ranks_per_node
        self._images = ImageBatches(scenario, architecture) if scenario.training.images else None
        self._policy = self._asked.policy or Balancing(name="contiguous")
        self._popularity = Popularity(self._asked, folder, len(parts), self._experts, self._top_k)

    def outcome(self, ep: int, tokens: int, micro_batches: int = 1) -> Outcome:
        """What each expert slot receives in the unlike ones of *micro_batches* micro-batches when each of *ep* ranks
        sends *tokens* tokens.

        Raise :exc:`Refused` for a trace that is not there, and what the routing's readers and policies raise.
        """
        unlike, shape = min(micro_batches, MOST_UNLIKE), Shape(self._experts, self._top_k, ep, tokens)
        tables = self._of_step(self._asked.step, micro_batches, unlike, shape)
        setting = self._setting(shape, unlike)
        name, options = self._policy.name, self._policy.options
        planned = self._planned or self._plan_of(self._asked.step, micro_batches, shape) or _mean(tables)
        outcome = joined([apply_policy(name, planned, table, setting, **options) for table in tables])
        earlier = self._plan_of(max(0, self._asked.step - 1), micro_batches, shape)
        if earlier is None:
            return outcome
        return replace(outcome, before=apply_policy(name, earlier, tables[0], setting, **options).placement)

    def _of_step(self, step: int, micro_batches: int, unlike: int, shape: Shape) -> list[RoutingTable]:
        """The table of *step*, or one for each of its *unlike* micro-batches."""
        if self._asked.drift_between == "micro_batches":
            return self._popularity.at(step * micro_batches, unlike, shape)
        return self._popularity.at(step, 1, shape)

    def _plan_of(self, step: int, micro_batches: int, shape: Shape) -> RoutingTable | None:
        """What the plan in force at *step* was made from; None where plans are not made from time to time."""
        every = self._policy.replan_every
        if every is None:
            return None
        seen = max(0, step // every * every - 1)
        return _mean(self._of_step(seen, micro_batches, min(micro_batches, MOST_UNLIKE), shape))

    def _setting(self, shape: Shape, unlike: int) -> Setting:
        asked, training = self._training.sequences, self._training
        plain = Setting(shape.ranks, self._top_k, shape.tokens, self._ranks_per_node, seed=self._asked.seed)
        if self._asked.workload == "W4_source_ragged":
            ragged = ragged_tokens(shape, self._asked.seed)
            return replace(plain, sequence_tokens=_split(ragged, training.micro_batch_sequences))
        if asked is None:
            return plain
        many = unlike * shape.ranks * training.micro_batch_sequences
        lengths = np.resize(np.array(asked.lengths or (training.sequence_length,), np.int64), many)
        patches = self._images.patches_in(lengths) if self._images else None
        return replace(
            plain,
            micro_batches=unlike,
            sequence_tokens=lengths,
            image_patches=patches,
            domains=asked.domains,
            spread=asked.spread,
        )

    @cached_property
    def _planned(self) -> RoutingTable | None:
        trace = self._policy.planned_on
        return self._popularity.of_trace(trace, "policy.planned_on") if trace else None


def _split(tokens: IntArray, sequences: int) -> IntArray:
    """The *tokens* of each rank as so many *sequences* of each, dealt rank after rank."""
    each, more = np.divmod(tokens, sequences)
    return np.concatenate([each + (number < more) for number in range(sequences)])


def _mean(tables: list[RoutingTable]) -> RoutingTable:
    if len(tables) == 1:
        return tables[0]
    mean = np.mean([table.popularity for table in tables], axis=0)
    return RoutingTable(mean, tables[0].name, tables[0].source, tables[0].recorded_layers)
