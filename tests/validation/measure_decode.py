"""Iterations of a serving engine on one GPU, measured: weights, caches or experts in host memory, or all on the card.

The model has real layers and random weights: norms, one product for queries, keys and values, rotary embedding, keys
and values written to a cache and read by flash attention, gated feed-forward parts or a mixture of experts, a head.
Element-wise parts are compiled. With all on the card, an iteration is one CUDA graph; else the host launches kernels
and copies, which run on a stream of their own, a layer ahead:

- `weights`: of a share of the layers, in pinned memory, one copy a tensor, into two layers' worth of buffers,
- `cache`: keys and values of a share of the layers, in pinned memory, one copy of both, into two buffers; a new
  token's go out behind the layer,
- `experts`: all in pinned memory; those chosen that the card does not hold come when the host has read the router's
  choice, two copies each; from one choice to the next the host replays a CUDA graph. The card holds the first
  `on_card` of them for good. Choices are drawn ahead (expert_draws).

    python measure_decode.py cases.json runs.json [NAME...]

Needs torch, numpy and one GPU. Writes median, shortest and longest seconds of an iteration for each case.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from expert_draws import draws
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP, BUFFERS, MOST_SHAPES = 3, 2, 64
Case = dict[str, Any]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm."""
    return F.rms_norm(x, x.shape[-1:], weight)


def add_norm(residual: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    total = residual + x
    return total, F.rms_norm(total, total.shape[-1:], weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads [tokens, heads, dim]."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def gated(x: Tensor) -> Tensor:
    """SwiGLU of both halves."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """*function* compiled, on a GPU."""
    return torch.compile(function, dynamic=False) if DEVICE == "cuda" else function


def randn(*shape: int, pinned: bool = False) -> Tensor:
    """Random bf16, on the card or in pinned memory."""
    made = (torch.randn(shape, device=DEVICE, dtype=torch.float32) / shape[-1] ** 0.5).to(torch.bfloat16)
    if not pinned:
        return made
    return torch.empty(shape, dtype=torch.bfloat16, pin_memory=DEVICE == "cuda").copy_(made)


@dataclass
class Copies:
    """Copies on a stream of their own."""

    stream: Any = None

    def __post_init__(self) -> None:
        if DEVICE == "cuda":
            self.stream = torch.cuda.Stream()

    def run(self, pairs: list[tuple[Tensor, Tensor]], after: Any | None) -> Any:
        """Copy each pair's second into its first, behind the event *after*; an event of its end."""
        if DEVICE == "cpu":
            for to, source in pairs:
                to.copy_(source)
            return None
        with torch.cuda.stream(self.stream):
            if after is not None:
                self.stream.wait_event(after)
            for to, source in pairs:
                to.copy_(source, non_blocking=True)
            return self.stream.record_event()


def wait(event: Any | None) -> None:
    """Have the kernels that follow wait for *event*."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


def mark() -> Any:
    """An event behind the kernels so far."""
    return torch.cuda.current_stream().record_event() if DEVICE == "cuda" else None


def taken(share: float, ordinal: int) -> bool:
    """Whether the thing with that *ordinal* is among an evenly spread *share*."""
    return int((ordinal + 1) * share + 1e-9) > int(ordinal * share + 1e-9)


Stream = tuple[Tensor, Tensor]
"""The residual stream, and its norm."""


@dataclass
class Routed:
    """Rows on their way through experts."""

    rows: Tensor
    order: Tensor
    share: Tensor
    counts: Tensor


class Model:
    """A model of *case*, whose iterations `run` runs."""

    def __init__(self, case: Case) -> None:
        self.case, shape = case, case["shape"]
        self.hidden, self.heads, self.kv = shape["hidden"], shape["heads"], shape["kv_heads"]
        self.dim, self.wide = shape["head_dim"], shape["intermediate"]
        self.experts, self.top_k = shape.get("experts", 0), shape.get("top_k", 0)
        self.sequences, self.context, self.prompt = case["sequences"], case["context"], case.get("prompt", 0)
        self.tokens = self.sequences * (self.prompt or 1)
        self.layers = case["layers"]
        self.copies, self.back = Copies(), Copies()
        self.add_norm, self.rotate, self.gated = compiled(add_norm), compiled(rotate), compiled(gated)
        self._weights()
        self._caches()
        if self.experts:
            self._experts()
        angles = torch.rand(self.tokens, 1, self.dim, device=DEVICE)
        self.cos, self.sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
        self.first_norm, self.head = randn(self.hidden), randn(shape["vocabulary"], self.hidden)
        self.embedding = randn(shape["vocabulary"], self.hidden)
        self.ids = torch.randint(shape["vocabulary"], (self.tokens,), device=DEVICE)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {
            "qkv": ((self.heads + 2 * self.kv) * self.dim, self.hidden),
            "o": (self.hidden, self.heads * self.dim),
            "norm": (self.hidden,),
            "next_norm": (self.hidden,),
        }
        if self.experts:
            return found | {"router": (self.experts, self.hidden)}
        return found | {"fc1": (2 * self.wide, self.hidden), "fc2": (self.hidden, self.wide)}

    def _weights(self) -> None:
        share, shapes = self.case.get("weights", 0.0), self._shapes()
        self.away = [taken(share, layer) for layer in range(self.layers)]
        self.weights = [{name: randn(*shape, pinned=away) for name, shape in shapes.items()} for away in self.away]
        self.buffers = [{name: randn(*shape) for name, shape in shapes.items()} for _ in range(BUFFERS if share else 0)]

    def _caches(self) -> None:
        share, length = self.case.get("cache", 0.0), max(self.context, self.prompt)
        shape = (2, self.sequences, length, self.kv, self.dim)
        self.cache_away = [taken(share, layer) for layer in range(self.layers)]
        self.caches = [randn(*shape, pinned=away) for away in self.cache_away]
        self.cache_buffers = [randn(*shape) for _ in range(BUFFERS if share else 0)]

    def _experts(self) -> None:
        """Weights of experts: in one tensor for each layer and matrix, the card's own first, then room for others."""
        self.kept = round(self.case["on_card"] * self.experts)
        slots = self.kept + min(self.experts - self.kept, self.tokens * self.top_k)
        two = ((2 * self.wide, self.hidden), (self.hidden, self.wide))
        self.own = [tuple(randn(slots, *shape) for shape in two) for _ in range(self.layers)]
        away = self.experts - self.kept
        self.others = [
            tuple(randn(away, *shape, pinned=True) for shape in two) for _ in range(self.layers if away else 0)
        ]
        chosen = draws(
            self.case["iterations"] + WARM_UP, self.layers, self.tokens, self.experts, self.top_k, self.case["skew"]
        )
        self.drawn = torch.from_numpy(chosen).to(DEVICE)
        self.now = self.drawn[0].clone()
        shape = (self.layers, self.experts)
        self.read = torch.zeros(shape, dtype=torch.int32, pin_memory=DEVICE == "cuda")

    def run(self) -> Tensor:
        """One iteration."""
        return self.end(self.through(self.start(), range(self.layers)))

    def start(self) -> Stream:
        """Before the layers."""
        x = self.embedding[self.ids]
        return x, norm(x, self.first_norm)

    def through(self, stream: Stream, layers: range) -> Stream:
        """Whole layers."""
        residual, normed = stream
        for layer in layers:
            weights, cache = self._ready(layer)
            residual, normed = self.mixer((residual, normed), weights, cache)
            if self.experts:
                routed = self._routed(normed, weights, layer)
                residual, normed = self.behind((residual, self._mixed(routed, layer)), weights)
            else:
                residual, normed = self.behind((residual, self._dense(normed, weights)), weights)
            self._release(layer)
        return residual, normed

    def mixer(self, stream: Stream, weights: dict[str, Tensor], cache: Tensor) -> Stream:
        """A layer as far as the norm before its feed-forward part."""
        return self.add_norm(stream[0], self._attention(stream[1], weights, cache), weights["norm"])

    def behind(self, stream: Stream, weights: dict[str, Tensor]) -> Stream:
        """What its feed-forward part made, added, and the norm of the next layer."""
        return self.add_norm(*stream, weights["next_norm"])

    def end(self, stream: Stream) -> Tensor:
        """Behind the layers: the next tokens."""
        last = stream[1].view(self.sequences, -1, self.hidden)[:, -1]
        return (last @ self.head.T).argmax(-1)

    def begin(self) -> None:
        """Have the first layers come in."""
        self.used: dict[str, list[Any]] = {"weights": [], "cache": []}
        self.came: dict[str, list[Any]] = {"weights": [], "cache": []}
        for kind, away in (("weights", self.away), ("cache", self.cache_away)):
            self.order = getattr(self, "order", {}) | {kind: [n for n, far in enumerate(away) if far]}
            for _ in range(BUFFERS - 1):
                self._bring(kind)

    def _bring(self, kind: str) -> None:
        order, number = self.order[kind], len(self.came[kind])
        if not order:
            return
        layer, place = order[number % len(order)], number % BUFFERS
        after = self.used[kind][number - BUFFERS] if number >= BUFFERS else None
        if kind == "weights":
            pairs = [(self.buffers[place][name], tensor) for name, tensor in self.weights[layer].items()]
        else:
            pairs = [(self.cache_buffers[place], self.caches[layer])]
        self.came[kind].append(self.copies.run(pairs, after))

    def _ready(self, layer: int) -> tuple[dict[str, Tensor], Tensor]:
        """Weights and cache of *layer* on the card; the next ones are sent for."""
        weights, cache = self.weights[layer], self.caches[layer]
        if self.away[layer]:
            self._bring("weights")
            number = len(self.used["weights"])
            wait(self.came["weights"][number])
            weights = self.buffers[number % BUFFERS]
        if self.cache_away[layer]:
            self._bring("cache")
            number = len(self.used["cache"])
            wait(self.came["cache"][number])
            cache = self.cache_buffers[number % BUFFERS]
        return weights, cache

    def _release(self, layer: int) -> None:
        if self.away[layer]:
            self.used["weights"].append(mark())
        if self.cache_away[layer]:
            number = len(self.used["cache"])
            last = slice(self.context - 1, self.context) if not self.prompt else slice(0, self.prompt)
            new = self.cache_buffers[number % BUFFERS][:, :, last]
            self.back.run([(self.caches[layer][:, :, last], new)], mark())
            self.used["cache"].append(self.back.stream.record_event() if DEVICE == "cuda" else None)

    def _attention(self, x: Tensor, weights: dict[str, Tensor], cache: Tensor) -> Tensor:
        heads, kv, dim = self.heads, self.kv, self.dim
        q, k, v = (x @ weights["qkv"].T).view(-1, heads + 2 * kv, dim).split((heads, kv, kv), 1)
        q, k = self.rotate(q, self.cos, self.sin), self.rotate(k, self.cos, self.sin)
        each = self.prompt or 1
        q, k, v = (one.view(self.sequences, each, -1, dim) for one in (q, k, v))
        if self.prompt:
            cache[0, :, :each], cache[1, :, :each] = k, v
            keys, values, causal = k, v, True
        else:
            cache[0, :, self.context - 1 :][:, :1], cache[1, :, self.context - 1 :][:, :1] = k, v
            keys, values, causal = cache[0, :, : self.context], cache[1, :, : self.context], False
        q, keys, values = (one.transpose(1, 2) for one in (q, keys, values))
        found = F.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=True)
        return found.transpose(1, 2).reshape(-1, heads * dim) @ weights["o"].T

    def _dense(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return self.gated(x @ weights["fc1"].T) @ weights["fc2"].T

    def _routed(self, x: Tensor, weights: dict[str, Tensor], layer: int) -> Routed:
        """What the router chooses, with rows in the order of their experts; the host's copy of the counts."""
        scores = torch.softmax((x @ weights["router"].T).float(), -1)
        ids = self.now[layer]
        share = scores.gather(1, ids).to(torch.bfloat16)
        flat, order = ids.reshape(-1).sort()
        counts = torch.zeros(self.experts, dtype=torch.int32, device=DEVICE)
        counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        self.read[layer].copy_(counts, non_blocking=True)
        return Routed(x[order // self.top_k], order, share, counts)

    def _mixed(self, routed: Routed, layer: int) -> Tensor:
        """Products of the card's own experts and of those in the room behind them, in which they lie in order."""
        kept, others = routed.counts[: self.kept], routed.counts[self.kept :]
        first = torch.argsort((others == 0).to(torch.int32), stable=True)
        ends = torch.cat((kept, others[first])).cumsum(0).to(torch.int32)[: len(self.own[layer][0])]
        up, down = (one.transpose(1, 2) for one in self.own[layer])
        made = torch._grouped_mm(self.gated(torch._grouped_mm(routed.rows, up, offs=ends)), down, offs=ends)
        back = torch.empty_like(made)
        back[routed.order] = made
        return (back.view(-1, self.top_k, self.hidden) * routed.share[..., None]).sum(1)

    def fetch(self, layer: int) -> None:
        """Have the chosen experts of *layer* come that the card does not hold; the host knows them."""
        read = self.read[layer].tolist()
        wanted = [expert for expert in range(self.kept, self.experts) if read[expert]]
        pairs = [
            (self.own[layer][matrix][self.kept + place], self.others[layer][matrix][expert - self.kept])
            for place, expert in enumerate(wanted)
            for matrix in range(2)
        ]
        wait(self.copies.run(pairs, mark()))


class Pieces:
    """Iterations of a *model* whose host reads what each router chose: a CUDA graph from one choice to the next."""

    def __init__(self, model: Model) -> None:
        self._model, self._calls, self._iteration = model, [], 0
        stream: Any = model.start()
        routed: Routed | None = None
        for layer in range(model.layers):
            self._calls.append(self._piece(layer, stream, routed))
            stream, routed = self._calls[-1][1]
        self._calls.append(self._piece(model.layers, stream, routed))

    def _piece(self, layer: int, stream: Stream, routed: Routed | None) -> tuple[Callable[[], Any], Any]:
        """From the choice of the layer before *layer* to that of *layer*, and what it leaves."""
        model = self._model

        def piece() -> Any:
            found = model.start() if routed is None else stream
            if routed is not None:
                found = model.behind((stream[0], model._mixed(routed, layer - 1)), model.weights[layer - 1])
            if layer == model.layers:
                return model.end(found)
            weights = model.weights[layer]
            found = model.mixer(found, weights, model.caches[layer])
            return found, model._routed(found[1], weights, layer)

        if DEVICE == "cpu":
            return piece, piece()
        piece()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            left = piece()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, left

    def run(self) -> None:
        """One iteration."""
        model = self._model
        model.now.copy_(model.drawn[self._iteration % len(model.drawn)])
        self._iteration += 1
        for layer, (call, _) in enumerate(self._calls):
            call()
            if layer < model.layers:
                event = mark()
                if event is not None:
                    event.synchronize()
                model.fetch(layer)


def timed(model: Model, case: Case) -> list[float]:
    """Seconds of iterations in a row, several at a time where they are short."""
    run: Callable[[], Any] = model.run
    model.begin()
    if case.get("on_card", 1.0) < 1.0:
        run = Pieces(model).run
    for _ in range(WARM_UP):
        run()
    if case["graph"] and run == model.run and DEVICE == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.run()
        run = graph.replay
        run()
    together, found = case["together"], []
    for _ in range(case["iterations"] // together):
        synchronize()
        begun = time.perf_counter()
        for _ in range(together):
            run()
        synchronize()
        found.append((time.perf_counter() - begun) / together)
    return found


def synchronize() -> None:
    """Wait for the card."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measured(cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Runs of *cases*; one that fails says why."""
    for case in cases:
        begun = time.perf_counter()
        try:
            with torch.no_grad():
                model = Model(case)
                seconds = timed(model, case)
        except (RuntimeError, NotImplementedError) as error:
            yield {"id": case["id"], "failed": str(error).splitlines()[0]}
            continue
        finally:
            model = None
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
        yield {
            "id": case["id"],
            "iteration_s": statistics.median(seconds),
            "iteration_min_s": min(seconds),
            "iteration_max_s": max(seconds),
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
            "wall_s": time.perf_counter() - begun,
        }


def main() -> None:
    """Measure, writing and telling after every case."""
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    cases_file, runs_file, *names = sys.argv[1:]
    cases = json.loads(Path(cases_file).read_text())
    chosen, found = [case for case in cases if not names or case["id"] in names], []
    for run in measured(chosen):
        found.append(run)
        sys.stdout.write(json.dumps(run) + "\n")
        sys.stdout.flush()
        Path(runs_file).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
