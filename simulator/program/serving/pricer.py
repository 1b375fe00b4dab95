"""What an iteration of a deployment takes, and where its time goes.

Iterations of decoding sequences alone are replayed as CUDA graphs where the deployment has them; with prompts, the
host issues kernel by kernel, as compiled code or Python does. Work of the engine's scheduler between iterations is
beside the device and takes no time of it (vLLM's asynchronous scheduling, the overlap schedulers of SGLang and
TensorRT-LLM).
"""

from __future__ import annotations

from simulator.model.cache import BF16_BYTES
from simulator.model.serving.head import first_operators, last_operators
from simulator.program.serving.below import BelowTheCard, on_card
from simulator.program.serving.deployment import Deployment
from simulator.program.serving.iteration import Iteration, Parts, Price
from simulator.program.serving.layer_steps import LayerSteps
from simulator.program.serving.overlap import overlapped
from simulator.program.serving.streaming import Layer, streamed
from simulator.program.serving.timing import Step, grades_of, in_order


class IterationPricer:
    """Prices iterations of one deployment; remembers those that it has priced."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._layers = LayerSteps(on_card(deployment))
        self._below = BelowTheCard(deployment) if deployment.offload else None
        self._known: dict[Iteration, Price] = {}

    def price(self, iteration: Iteration) -> Price:
        """Time of *iteration* on every attention-data-parallel rank. Nothing to compute takes no time."""
        if iteration not in self._known:
            self._known[iteration] = self._price(iteration) if iteration.tokens else Price(Parts(), 0.0, {})
        return self._known[iteration]

    def _price(self, iteration: Iteration) -> Price:
        deployment = self._deployment
        stages = [self._stage(stage, iteration) for stage in range(deployment.mesh.pp)]
        handed = [self._handed_over(stage, iteration) for stage in range(deployment.mesh.pp - 1)]
        parts = sum((one for one, _ in stages), Parts()) + Parts(pipeline_s=sum(step.seconds for step in handed))
        grades = grades_of([*(step for _, steps in stages for step in steps), *handed])
        return Price(parts, max(one.total_s for one, _ in stages), grades)

    def _stage(self, stage: int, iteration: Iteration) -> tuple[Parts, list[Step]]:
        """Parts of one pipeline stage's time, and its steps."""
        graph = self._deployment.cuda_graphs and not iteration.prefill
        launch_s = 0.0 if graph else self._launch_s(iteration)
        halves = iteration.halves
        if self._deployment.two_batch_overlap and self._deployment.exchanges and all(half.tokens for half in halves):
            first, second = (self._steps(stage, half, graph=graph) for half in halves)
            return overlapped(first, second, launch_s), [*first, *second]
        steps = self._steps(stage, iteration, graph=graph)
        if self._below is not None:
            parts, waiting = self._streamed(self._below, stage, iteration, launch_s, graph=graph)
            return parts, [*steps, waiting]
        return in_order(steps, launch_s), steps

    def _launch_s(self, iteration: Iteration) -> float:
        code = self._deployment.prefill_code if iteration.prefill else "compiled"
        return self._deployment.cluster.accelerator.launch_s(code)

    def _streamed(
        self, below: BelowTheCard, stage: int, iteration: Iteration, launch_s: float, *, graph: bool
    ) -> tuple[Parts, Step]:
        """Parts of a stage of which something comes up for the iteration, and what it waits for that."""
        layers = self._deployment.layers_of(stage)
        each = zip(layers, self._layers.of_stage(stage, iteration, graph=graph), strict=True)
        begin, end = self._ends(stage, iteration, graph=graph)
        through = [Layer(steps, below.of(layer, iteration)) for layer, steps in each]
        return streamed([Layer(begin), *through, Layer(end)], self._deployment.offload.buffers, launch_s)

    def _steps(self, stage: int, iteration: Iteration, *, graph: bool) -> list[Step]:
        begin, end = self._ends(stage, iteration, graph=graph)
        layers = self._layers.of_stage(stage, iteration, graph=graph)
        return [*begin, *(step for steps in layers for step in steps), *end]

    def _ends(self, stage: int, iteration: Iteration, *, graph: bool) -> tuple[list[Step], list[Step]]:
        """What of the model's ends the stage has."""
        model, tp, gap_s = self._deployment.architecture, self._deployment.mesh.tp, self._layers.gap_s(graph=graph)
        begin = first_operators(model, iteration, tp) if stage == 0 else ()
        end = last_operators(model, iteration, tp) if stage == self._deployment.mesh.pp - 1 else ()
        of_operators = self._layers.of_operators
        return of_operators(begin, "head_s", gap_s), of_operators(end, "head_s", gap_s)

    def _handed_over(self, stage: int, iteration: Iteration) -> Step:
        """The hidden states of all tokens, to the next stage."""
        size = float(iteration.tokens * self._deployment.architecture.hidden * BF16_BYTES)
        transfer = self._layers.network.hand_over(size, "", stage, stage + 1)
        return Step("pipeline_s", transfer.longest_s, transfer.grade, 1)
