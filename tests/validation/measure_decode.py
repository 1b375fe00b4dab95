"""Iterations of a serving engine on one GPU, measured: weights, caches or experts in host memory, or all on the card.

The model has real layers and random weights: norms, one product for queries, keys and values, rotary embedding, keys
and values written to a cache and read by flash attention, gated feed-forward parts or a mixture of experts, a head.
Element-wise parts are compiled. With all on the card, an iteration is one CUDA graph; else the host launches kernels
and copies, which run on a stream of their own, a layer ahead:

- `weights`: of a share of the layers, in pinned memory, one copy a tensor, into two layers' worth of buffers,
- `cache`: keys and values of a share of the layers, in pinned memory, one copy of both, into two buffers; a new
  token's go out behind the layer,
- `experts`: all in pinned memory; those chosen that the card does not hold come when the host has read the router's
  choice, two copies each. The card holds the first `on_card` of them for good. Choices are drawn ahead (expert_draws).

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
        self.chosen = self.drawn = None
        self.iteration = 0
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
        rows = min(self.experts - self.kept, self.tokens * self.top_k)
        two = ((2 * self.wide, self.hidden), (self.hidden, self.wide))
        self.own = [tuple(randn(self.kept, *shape) for shape in two) for _ in range(self.layers)]
        self.room = tuple(randn(rows, *shape) for shape in two) if rows else None
        away = self.experts - self.kept
        self.others = [
            tuple(randn(away, *shape, pinned=True) for shape in two) for _ in range(self.layers if away else 0)
        ]
        self.drawn = draws(
            self.case["iterations"] + WARM_UP, self.layers, self.tokens, self.experts, self.top_k, self.case["skew"]
        )
        self.on_device = torch.from_numpy(self.drawn).to(DEVICE)

    def run(self) -> Tensor:
        """One iteration."""
        x = self.embedding[self.ids]
        residual, normed = x, norm(x, self.first_norm)
        for layer in range(self.layers):
            weights, cache = self._ready(layer)
            mixed = self._attention(normed, weights, cache, layer)
            residual, normed = self.add_norm(residual, mixed, weights["norm"])
            out = self._mixture(normed, weights, layer) if self.experts else self._dense(normed, weights)
            residual, normed = self.add_norm(residual, out, weights["next_norm"])
            self._release(layer)
        self.iteration += 1
        last = normed.view(self.sequences, -1, self.hidden)[:, -1]
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

    def _attention(self, x: Tensor, weights: dict[str, Tensor], cache: Tensor, layer: int) -> Tensor:
        del layer
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

    def _mixture(self, x: Tensor, weights: dict[str, Tensor], layer: int) -> Tensor:
        scores = torch.softmax((x @ weights["router"].T).float(), -1)
        ids = self.on_device[self.iteration % len(self.drawn), layer]
        share = scores.gather(1, ids).to(torch.bfloat16)
        flat, order = ids.reshape(-1).sort()
        rows = x[order // self.top_k]
        counts = torch.bincount(flat, minlength=self.experts)
        if self.kept == self.experts:
            ends = counts.cumsum(0).to(torch.int32)
            made = self._products(rows, self.own[layer], ends)
        else:
            made = self._fetched(rows, counts, layer)
        back = torch.empty_like(made)
        back[order] = made
        return (back.view(-1, self.top_k, self.hidden) * share[..., None]).sum(1)

    def _fetched(self, rows: Tensor, counts: Tensor, layer: int) -> Tensor:
        """Products of *rows*, sorted by expert, of which the card's own experts come first."""
        read = counts.tolist()
        wanted = [expert for expert in range(self.kept, self.experts) if read[expert]]
        pairs = [
            (self.room[matrix][place], self.others[layer][matrix][expert - self.kept])
            for place, expert in enumerate(wanted)
            for matrix in range(2)
        ]
        came = self.copies.run(pairs, mark())
        own = sum(read[: self.kept])
        found = []
        if own:
            found.append(self._products(rows[:own], self.own[layer], counts[: self.kept].cumsum(0).to(torch.int32)))
        wait(came)
        if wanted:
            ends = torch.tensor(
                [sum(read[self.kept : expert + 1]) for expert in wanted], dtype=torch.int32, device=DEVICE
            )
            found.append(self._products(rows[own:], tuple(one[: len(wanted)] for one in self.room), ends))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _products(self, rows: Tensor, matrices: tuple[Tensor, ...], ends: Tensor) -> Tensor:
        wide = torch._grouped_mm(rows, matrices[0].transpose(1, 2), offs=ends)
        return torch._grouped_mm(gated(wide), matrices[1].transpose(1, 2), offs=ends)


def timed(model: Model, case: Case) -> list[float]:
    """Seconds of iterations in a row, ten at a time where they are as short as that."""
    graphed = case["graph"]
    run: Callable[[], Any] = model.run
    model.begin()
    for _ in range(WARM_UP):
        run()
    if graphed and DEVICE == "cuda":
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
            "peak_allocated_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
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
