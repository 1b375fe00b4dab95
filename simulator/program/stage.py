"""One pipeline stage: forward and backward passes of its layers, between what it receives and what it sends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from simulator.engine.task import Allocation, Quantity, Task
from simulator.model.operator import Kernel
from simulator.program.batch import Batch
from simulator.program.costs import Costs, Priced
from simulator.program.data_parallel import DataParallel
from simulator.program.emitter import Emitter, allocation, tensors
from simulator.program.expert_load import LayerLoad
from simulator.program.fsdp import COMPUTE_BYTES
from simulator.program.image_code import ImageCode
from simulator.program.job import Job
from simulator.program.layer_code import Later, LayerCode
from simulator.program.layout import Layout
from simulator.program.network import Network, Transfer
from simulator.program.rebuilt import Rebuilt
from simulator.program.unit import Unit


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
    set_up: list[Task]
    """What is taken and given back before the first step."""
    rebuilt: Rebuilt | None
    """What the second step makes anew."""
    micro_batch_ends: tuple[int, ...]
    """Position of the last task of each micro-batch's backward pass; those that go together end as one."""
    first_rank: int
    """Global number of the stage's first rank."""
    layout: Layout
    unlike: int
    """Micro-batches that are unlike, as many as go together counted as one; those after them are like the first ones
    again."""
    loads: dict[int, LayerLoad]
    """Expert load of its MoE layers in the first micro-batch, by layer index."""


@dataclass(frozen=True, slots=True)
class PredictionCode:
    """What a multi-token-prediction module shares with the model: the embedding before it, the head behind it."""

    embedding: LayerCode
    loss: LayerCode


@dataclass(frozen=True, slots=True)
class ChunkCode:
    """What a pass goes through: a run of the stage's layers, and the ends of the model where it has them."""

    places: Sequence[int]
    """Its layers among those of the stage; the last of them are multi-token-prediction modules: as many as there are
    *predictions*."""
    embedding: LayerCode | None
    loss: LayerCode | None
    predictions: Sequence[PredictionCode] = ()
    images: ImageCode | None = None

    @property
    def has_end(self) -> bool:
        """Whether the model begins or ends in it."""
        return self.embedding is not None or self.loss is not None

    def prediction(self, place: int) -> PredictionCode | None:
        """What is around a layer that is a module."""
        ahead = self.places.index(place) - len(self.places) + len(self.predictions)
        return self.predictions[ahead] if ahead >= 0 else None


@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of a stage."""

    number: int
    layers: Sequence[LayerCode]
    """Of all chunks; multi-token-prediction modules behind them."""
    chunks: Sequence[ChunkCode]
    input_bytes: Quantity
    """Of the residual stream between two layers."""


class StageWriter:
    """Writes the passes of a stage, whose unlike micro-batches have *codes* in turn.

    A pass may be of several micro-batches, which go through each layer one after the other while its parameters are
    gathered; autograd takes them back in the opposite order, and sums their gradients in place as they come.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        codes: Sequence[StageCode],
        emitter: Emitter,
        sharding: DataParallel,
        network: Network,
        costs: Costs,
    ) -> None:
        self._job = job
        self._codes = codes
        self._code = codes[0]
        self._emitter = emitter
        self._sharding = sharding
        self._network = network
        self._costs = costs
        self._batch = Batch(job.batch, job.workload.sequence_lengths, emitter, network)
        self._units = layout.layers
        self._root = layout.root
        self._vision = layout.vision
        self._copied_elements = layout.copied_elements
        layers = job.layers_of(self._code.number)
        self._first_module = len(layers)
        behind = len(job.architecture.layers)
        self._layers = [layer.index for layer in layers] + [
            behind + n for n in range(len(self._code.layers) - len(layers))
        ]

    def _begin(self, one: int, number: int) -> ChunkCode:
        """Write the pass of number *one* from here on, in the chunk of that *number*."""
        self._emitter.micro_batch = one
        self._code = self._codes[one * self._job.together % len(self._codes)]
        return self._code.chunks[number]

    def _micro_batches(self, number: int, *, back: bool = False) -> Iterator[tuple[int, ChunkCode]]:
        """Those of the pass, the last one first on the way *back*, with the code of each for the chunk of *number*."""
        first, together = self._emitter.micro_batch * self._job.together, range(self._job.together)
        for ahead in reversed(together) if back else together:
            self._code = self._codes[(first + ahead) % len(self._codes)]
            yield first + ahead, self._code.chunks[number]

    def forward(self, one: int, number: int = 0) -> None:
        """All layers of the chunk of that *number* forward, gathering ahead, in the pass of number *one*."""
        emitter, sharding, chunk = self._emitter, self._sharding, self._begin(one, number)
        with emitter.at(phase="forward"):
            self._receive("forward", one, number)
            first = chunk.embedding is not None or bool(chunk.predictions)
            self._batch.begin(first=first, last=chunk.loss is not None)
            if chunk.has_end:
                sharding.unshard(self._root, keep_buffers=True)
            self._encode(chunk, one)
            self._gather_ahead(chunk.places, -1, +1)
            for micro_batch, code in self._micro_batches(number):
                if code.embedding is not None:
                    code.embedding.forward(f"{micro_batch} embedding")
                if code.images is not None:
                    code.images.place.forward(f"{micro_batch} images")
        for position, place in enumerate(chunk.places):
            with emitter.at(phase="forward", layer=self._layers[place]):
                self._layer_forward(number, position, place)
        with emitter.at(phase="forward"):
            for micro_batch, code in self._micro_batches(number):
                for ahead, prediction in enumerate(code.predictions):
                    prediction.loss.forward(f"{micro_batch} loss {ahead}")
                if code.loss is not None:
                    code.loss.forward(f"{micro_batch} loss")
            self._batch.end()
            sharding.finish_forward()
            self._send("forward", one, number)

    def backward(self, one: int, number: int = 0, *, later: Later = "never") -> None:
        """All layers of a chunk backward, recomputed where asked for; matmuls for gradients of their weights may come
        *later*.
        """
        emitter, sharding, chunk = self._emitter, self._sharding, self._begin(one, number)
        with emitter.at(phase="backward"):
            self._receive("backward", one, number)
            if chunk.has_end:
                sharding.unshard(self._root, keep_buffers=False)
            self._gather_ahead(chunk.places, len(chunk.places), -1)
            for micro_batch, code in self._micro_batches(number, back=True):
                if code.loss is not None:
                    code.loss.backward(f"{micro_batch} loss", partial(sharding.gradients, self._root))
                    self._add_up(micro_batch, self._root, code.loss)
                for ahead, prediction in reversed(list(enumerate(code.predictions))):
                    prediction.loss.backward(f"{micro_batch} loss {ahead}", partial(sharding.gradients, self._root))
        for position, place in reversed(list(enumerate(chunk.places))):
            with emitter.at(phase="backward", layer=self._layers[place]):
                self._layer_backward(number, position, place, later=later)
        with emitter.at(phase="backward"):
            for micro_batch, code in self._micro_batches(number, back=True):
                if code.embedding is not None:
                    code.embedding.backward(f"{micro_batch} embedding", partial(sharding.gradients, self._root))
                    if not (self._job.architecture.tied_embeddings or code.predictions):
                        self._add_up(micro_batch, self._root, code.embedding)
            self._encode_backward(chunk, one)
            self._send("backward", one, number)
            if chunk.has_end:
                sharding.reshard(self._root)
                sharding.reduce(self._root)
            sharding.finish_backward()

    def weights(self, one: int, number: int = 0) -> None:
        """The gradients of weights that a backward pass has left."""
        emitter, chunk = self._emitter, self._begin(one, number)
        for place in reversed(chunk.places):
            unit = self._units[place]
            with emitter.at(phase="backward", layer=self._layers[place]):
                self._code.layers[place].weights(f"{one} {unit.name}", partial(self._sharding.gradients, unit))

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

    def _add_up(self, micro_batch: int, unit: Unit, code: LayerCode) -> None:
        """Add the gradients of the weights of *unit* that *code* uses to those of the micro-batches of the pass that
        were before *micro_batch*: both are read and one is written, in bf16.
        """
        trained = [unit.trained[name][1] for name in code.uses if name in unit.trained]
        if (micro_batch + 1) % self._job.together and sum(trained):
            traffic = 3.0 * COMPUTE_BYTES * sum(trained)
            adding = self._costs.price(Kernel("elementwise", 0.0, traffic, launches=len(trained)))
            self._emitter.compute("add gradients", "elementwise", adding)

    def _encode(self, chunk: ChunkCode, micro_batch: int) -> None:
        """The images through the vision tower, which is gathered as one unit."""
        if chunk.images is not None and self._vision is not None:
            self._sharding.unshard(self._vision, keep_buffers=True)
            chunk.images.forward(f"{micro_batch} vision")
            if self._job.reshard_after_forward or not chunk.images.trained:
                self._sharding.reshard(self._vision)

    def _encode_backward(self, chunk: ChunkCode, micro_batch: int) -> None:
        images, vision, sharding = chunk.images, self._vision, self._sharding
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

    def _layer_forward(self, number: int, position: int, place: int) -> None:
        """The layer at a *place* of the stage, which is at a *position* of the chunk of that *number*."""
        sharding, unit = self._sharding, self._units[place]
        sharding.unshard(unit, keep_buffers=True)
        self._gather_ahead(self._code.chunks[number].places, position, +1)
        for micro_batch, chunk in self._micro_batches(number):
            tag, prediction = f"{micro_batch} {unit.name}", chunk.prediction(place)
            if prediction is not None:
                prediction.embedding.forward(f"{tag} embedding")
            self._code.layers[place].forward(tag, first=self._kept_inputs(place, tag))
        if self._job.reshard_after_forward:
            sharding.reshard(unit)

    def _layer_backward(self, number: int, position: int, place: int, *, later: Later = "never") -> None:
        sharding, unit = self._sharding, self._units[place]
        if self._job.reshard_after_forward:
            sharding.unshard(unit, keep_buffers=False)
            self._gather_ahead(self._code.chunks[number].places, position, -1)
        for micro_batch, chunk in self._micro_batches(number, back=True):
            tag, prediction = f"{micro_batch} {unit.name}", chunk.prediction(place)
            self._code.layers[place].backward(tag, partial(sharding.gradients, unit), later=later)
            if prediction is not None:
                prediction.embedding.backward(f"{tag} embedding", partial(sharding.gradients, self._root))
            self._emitter.release(*(item.key for item in self._kept_inputs(place, tag)))
            self._add_up(micro_batch, unit, self._code.layers[place])
        sharding.reshard(unit)
        sharding.reduce(unit)

    def _gather_ahead(self, places: Sequence[int], position: int, direction: int) -> None:
        """Issue the gathers of the next layers of a chunk in *direction*."""
        for ahead in range(1, self._job.prefetch + 1):
            further = position + direction * ahead
            if 0 <= further < len(places) and (direction > 0 or self._job.reshard_after_forward):
                self._sharding.gather(self._units[places[further]])

    def _receive(self, direction: str, micro_batch: int, chunk: int) -> None:
        """Get activations (forward) or their gradients (backward); the compute stream waits for them.

        Megatron-LM's host waits too, for all that it has issued (`batch_p2p_sync`), unless stages have several chunks
        (`overlap_p2p_comm`); both are on by default.
        """
        emitter, pipeline, stage = self._emitter, self._job.pipeline, self._code.number
        sender = (pipeline.before if direction == "forward" else pipeline.behind)(stage, chunk)
        if sender is None:
            return
        transfer = self._hand_over(direction, micro_batch, chunk, sender, stage)
        transfer = replace(transfer, collective=replace(transfer.collective, wire_bytes=0.0))
        stream = self._stream("receive", direction, chunk)
        emitter.await_(emitter.transfer(f"receive {direction}", stream, transfer.kind, transfer, deps=()))
        if self._job.zero == 1 and pipeline.chunks == 1:
            emitter.compute("synchronize", "synchronize", Priced(0, 0, "measured"))
            emitter.block_host()

    def _send(self, direction: str, micro_batch: int, chunk: int) -> None:
        """Send them on beside compute."""
        emitter, pipeline, stage = self._emitter, self._job.pipeline, self._code.number
        receiver = (pipeline.behind if direction == "forward" else pipeline.before)(stage, chunk)
        if receiver is None:
            return
        transfer = self._hand_over(direction, micro_batch, chunk, stage, receiver)
        stream = self._stream("send", direction, chunk)
        emitter.transfer(f"send {direction}", stream, transfer.kind, transfer, deps=(emitter.last,))

    def _hand_over(self, direction: str, micro_batch: int, chunk: int, sender: int, receiver: int) -> Transfer:
        """The message between two stages, one of which is here, under a name that both know."""
        here = self._job.pipeline.virtual(self._code.number, chunk)
        forward, sends = direction == "forward", sender == self._code.number
        boundary = here if forward == sends else here - 1
        # Stages hand over as much for every rank: jobs with unequal sequences have one stage.
        size = float(np.max(self._code.input_bytes))
        return self._network.hand_over(size, f"{direction} {micro_batch} {boundary}", sender, receiver)

    def _stream(self, way: str, direction: str, chunk: int) -> str:
        """The stream of hand-overs; those of a model in the opposite direction have their own."""
        opposite = " opposite" if self._job.pipeline.mirrored and chunk else ""
        return f"pp_{way}_{direction}{opposite}"

    def _kept_inputs(self, number: int, tag: str) -> list[Allocation]:
        """What the forward pass of a layer leaves for the backward pass beside its operators' own saved tensors."""
        if number >= self._first_module:
            return self._kept_by_module(number - self._first_module, tag)
        kept, layer = [], self._job.architecture.layers[self._layers[number]]
        if self._code.layers[number].keeps_input:
            size = layer.hyper_connections * self._code.input_bytes
            kept.append(allocation(f"{tag}.input", "saved activations", size))
        if self._starts_block(layer.index):
            kept.append(allocation(f"{tag}.block", "saved activations", self._code.input_bytes))
        return kept

    def _kept_by_module(self, ahead: int, tag: str) -> list[Allocation]:
        """The embedding; of the hidden states, those of the model are kept by the final norm."""
        inputs = 1 if ahead == 0 else 2
        kept = tensors(f"{tag}.input", "saved activations", [self._code.input_bytes] * inputs)
        return [kept] if self._code.layers[self._first_module + ahead].keeps_input else []

    def _starts_block(self, index: int) -> bool:
        """Whether a new block of residuals, which all later layers read, begins with this layer (AttnRes)."""
        block = self._job.architecture.attn_res_block
        return bool(block) and index % block == 0
