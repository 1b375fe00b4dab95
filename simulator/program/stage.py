"""One pipeline stage: forward and backward passes of its layers, between what it receives and what it sends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simulator.engine.task import Allocation, Task
from simulator.program.costs import Priced
from simulator.program.data_parallel import DataParallel
from simulator.program.emitter import Emitter, allocation, tensors
from simulator.program.expert_load import LayerLoad
from simulator.program.image_code import ImageCode
from simulator.program.job import Job
from simulator.program.layer_code import LayerCode
from simulator.program.layout import Layout
from simulator.program.network import Network


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The program of one pipeline stage's ranks, with what is resident around it."""

    tasks: list[Task]
    resident: list[Allocation]
    """What its ranks hold from the start."""
    born: list[Allocation]
    """What the first update adds for good."""
    birth: int
    """Position of the task that it is born with."""
    micro_batch_ends: tuple[int, ...]
    """Position of the last task of each micro-batch's backward pass."""
    first_rank: int
    """Global number of the stage's first rank."""
    layout: Layout
    loads: dict[int, LayerLoad]
    """Expert load of its MoE layers, by layer index."""


@dataclass(frozen=True, slots=True)
class PredictionCode:
    """What a multi-token-prediction module shares with the model: the embedding before it, the head behind it."""

    embedding: LayerCode
    loss: LayerCode


@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of a stage: its layers, and the ends of the model where it has them."""

    number: int
    layers: Sequence[LayerCode]
    """The last of them are multi-token-prediction modules: as many as there are *predictions*."""
    embedding: LayerCode | None
    loss: LayerCode | None
    predictions: Sequence[PredictionCode] = ()
    images: ImageCode | None = None


class StageWriter:
    """Writes the passes of a stage."""

    def __init__(
        self, job: Job, layout: Layout, code: StageCode, emitter: Emitter, sharding: DataParallel, network: Network
    ) -> None:
        self._job = job
        self._code = code
        self._emitter = emitter
        self._sharding = sharding
        self._network = network
        self._units = layout.layers
        self._root = layout.root
        self._vision = layout.vision
        self._copied_elements = layout.copied_elements
        self._first_layer = job.layers_of(code.number)[0].index
        self._first_module = len(code.layers) - len(code.predictions)
        self._input_bytes = float(job.workload.own_tokens * job.architecture.hidden * job.workload.activation_bytes)

    def forward(self, micro_batch: int) -> None:
        """All layers forward, gathering ahead."""
        emitter, sharding, code = self._emitter, self._sharding, self._code
        emitter.micro_batch = micro_batch
        with emitter.at(phase="forward"):
            self._pass_on("forward", micro_batch, code.number - 1)
            sharding.unshard(self._root, keep_buffers=True)
            self._encode(micro_batch)
            self._gather_ahead(-1, +1)
            if code.embedding is not None:
                code.embedding.forward(f"{micro_batch} embedding")
            if code.images is not None:
                code.images.place.forward(f"{micro_batch} images")
        for number, (unit, layer) in enumerate(zip(self._units, code.layers, strict=True)):
            with emitter.at(phase="forward", layer=self._first_layer + number):
                sharding.unshard(unit, keep_buffers=True)
                self._gather_ahead(number, +1)
                tag = f"{micro_batch} {unit.name}"
                if number >= self._first_module:
                    code.predictions[number - self._first_module].embedding.forward(f"{tag} embedding")
                layer.forward(tag, first=self._kept_inputs(number, tag))
                if self._job.reshard_after_forward:
                    sharding.reshard(unit)
        with emitter.at(phase="forward"):
            for ahead, prediction in enumerate(code.predictions):
                prediction.loss.forward(f"{micro_batch} loss {ahead}")
            if code.loss is not None:
                code.loss.forward(f"{micro_batch} loss")
            self._pass_on("forward", micro_batch, code.number)

    def backward(self, micro_batch: int) -> None:
        """All layers backward, recomputed where asked for."""
        emitter, sharding, code = self._emitter, self._sharding, self._code
        emitter.micro_batch = micro_batch
        with emitter.at(phase="backward"):
            self._pass_on("backward", micro_batch, code.number)
            sharding.unshard(self._root, keep_buffers=False)
            self._gather_ahead(len(code.layers), -1)
            if code.loss is not None:
                code.loss.backward(f"{micro_batch} loss", partial(sharding.gradients, self._root))
            for ahead, prediction in reversed(list(enumerate(code.predictions))):
                prediction.loss.backward(f"{micro_batch} loss {ahead}", partial(sharding.gradients, self._root))
        for number in reversed(range(len(code.layers))):
            self._layer_backward(number, micro_batch)
        with emitter.at(phase="backward"):
            if code.embedding is not None:
                code.embedding.backward(f"{micro_batch} embedding", partial(sharding.gradients, self._root))
            self._encode_backward(micro_batch)
            self._pass_on("backward", micro_batch, code.number - 1)
            sharding.reshard(self._root)
            sharding.reduce(self._root)
            sharding.finish_backward()

    def update(self, write: Callable[[], None]) -> int:
        """Update the parameters, as *write* does, once every gradient is reduced. Returns where that begins."""
        self._emitter.micro_batch = -1
        with self._emitter.at(phase="optimizer"):
            self._sharding.before_update()
            self._sum_copies()
            begins = self._emitter.last + 1
            write()
            self._sharding.after_update()
        return begins

    def _encode(self, micro_batch: int) -> None:
        """The images through the vision tower, which is gathered as one unit."""
        if self._code.images is not None and self._vision is not None:
            self._sharding.unshard(self._vision, keep_buffers=True)
            self._code.images.forward(f"{micro_batch} vision")
            if self._job.reshard_after_forward or not self._code.images.trained:
                self._sharding.reshard(self._vision)

    def _encode_backward(self, micro_batch: int) -> None:
        images, vision, sharding = self._code.images, self._vision, self._sharding
        if images is None or vision is None or not images.trained:
            return
        images.place.backward(f"{micro_batch} images", partial(sharding.gradients, vision))
        sharding.unshard(vision, keep_buffers=False)
        images.backward(f"{micro_batch} vision", partial(sharding.gradients, vision))
        sharding.reshard(vision)
        sharding.reduce(vision)

    def _sum_copies(self) -> None:
        """Sum over tp the gradients of weights that every tp rank holds whole: each saw its own tokens only."""
        transfer = self._network.ring("all_reduce", "tp", float(self._copied_elements * self._job.reduce_bytes))
        if transfer is not None and self._copied_elements:
            deps = (self._emitter.last,)
            position = self._emitter.transfer("copied gradients", "tp", transfer.kind, transfer, deps=deps)
            self._emitter.await_(position)

    def _layer_backward(self, number: int, micro_batch: int) -> None:
        emitter, sharding, unit, code = self._emitter, self._sharding, self._units[number], self._code.layers[number]
        tag, layer = f"{micro_batch} {unit.name}", self._first_layer + number
        with emitter.at(phase="backward", layer=layer):
            if self._job.reshard_after_forward:
                sharding.unshard(unit, keep_buffers=False)
                self._gather_ahead(number, -1)
            code.backward(tag, partial(sharding.gradients, unit))
            if number >= self._first_module:
                embedding = self._code.predictions[number - self._first_module].embedding
                embedding.backward(f"{tag} embedding", partial(sharding.gradients, self._root))
            emitter.release(*(item.key for item in self._kept_inputs(number, tag)))
            sharding.reshard(unit)
            sharding.reduce(unit)

    def _gather_ahead(self, number: int, direction: int) -> None:
        """Issue the gathers of the next layers in *direction*."""
        for ahead in range(1, self._job.prefetch + 1):
            position = number + direction * ahead
            if 0 <= position < len(self._units) and (direction > 0 or self._job.reshard_after_forward):
                self._sharding.gather(self._units[position])

    def _pass_on(self, direction: str, micro_batch: int, boundary: int) -> None:
        """Move activations (forward) or their gradients (backward) over the *boundary* behind the stage of that number.

        The receiving stage's compute stream waits for them; sends go on beside compute. Megatron-LM's host waits too,
        for all that it has issued (`batch_p2p_sync`, on by default).
        """
        if not 0 <= boundary < self._job.mesh.pp - 1:
            return
        receives = (boundary < self._code.number) == (direction == "forward")
        transfer = self._network.hand_over(self._input_bytes, f"{direction} {micro_batch} {boundary}", boundary)
        if receives:
            transfer = replace(transfer, collective=replace(transfer.collective, wire_bytes=0.0))
        way = "receive" if receives else "send"
        stream = f"pp_{way}_{direction}"
        deps = () if receives else (self._emitter.last,)
        position = self._emitter.transfer(f"{way} {direction}", stream, transfer.kind, transfer, deps=deps)
        if receives:
            self._emitter.await_(position)
        if receives and self._job.zero == 1:
            self._emitter.compute("synchronize", "synchronize", Priced(0, 0, "measured"))
            self._emitter.block_host()

    def _kept_inputs(self, number: int, tag: str) -> list[Allocation]:
        """What the forward pass of a layer leaves for the backward pass beside its operators' own saved tensors."""
        if number >= self._first_module:
            return self._kept_by_module(number - self._first_module, tag)
        kept, layer = [], self._job.architecture.layers[self._first_layer + number]
        if self._code.layers[number].keeps_input:
            size = layer.hyper_connections * self._input_bytes
            kept.append(allocation(f"{tag}.input", "saved activations", size))
        if self._starts_block(layer.index):
            kept.append(allocation(f"{tag}.block", "saved activations", self._input_bytes))
        return kept

    def _kept_by_module(self, ahead: int, tag: str) -> list[Allocation]:
        """The embedding; of the hidden states, those of the model are kept by the final norm."""
        inputs = 1 if ahead == 0 else 2
        kept = tensors(f"{tag}.input", "saved activations", [self._input_bytes] * inputs)
        return [kept] if self._code.layers[self._first_module + ahead].keeps_input else []

    def _starts_block(self, index: int) -> bool:
        """Whether a new block of residuals, which all later layers read, begins with this layer (AttnRes)."""
        block = self._job.architecture.attn_res_block
        return bool(block) and index % block == 0
