"""Host time of FSDP2's hooks, measured without a GPU: how many launches of an eager layer they take as long as.

A tiny Llama is run eagerly on the CPU, whole or sharded over two ranks of a process group that moves nothing, so that
Python and dispatch are nearly all there is. What a unit takes beyond the whole layer, over what the whole layer takes a
launch, carries over to another host as well as a launch does. Layers have 9 parameters or 27, trained or frozen.

    python measure_fsdp_host.py

Needs torch and transformers, and no GPU. Prints one line a case: launches that a unit's hooks take as long as, forward
and backward, by medians and by the least of all rounds. Times are the process's, not those of the wall clock.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, ROUNDS, WARM = 12, 30, 4
LAUNCHES = 118
"""Kernels of a layer on a GPU, forward and backward (host-2026-11-30.json, "framework")."""
MORE = 18
POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Wider(nn.Module):
    """A layer with *more* parameters, which one addition each uses."""

    def __init__(self, layer: nn.Module, more: int) -> None:
        super().__init__()
        self.layer, self.more = layer, nn.ParameterList(nn.Parameter(torch.zeros(32)) for _ in range(more))

    def forward(self, x: torch.Tensor, *others: object, **named: object) -> torch.Tensor:
        for parameter in self.more:
            x = x + parameter
        return self.layer(x, *others, **named)


def model(more: int, *, sharded: bool, trained: bool) -> nn.Module:
    """The model, whose layers have *more* parameters than Llama's; frozen ones leave the embedding trained."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
    )
    found = LlamaForCausalLM(config)
    layers = found.model.layers = nn.ModuleList(Wider(layer, more) for layer in found.model.layers)
    layers.requires_grad_(trained)
    if not sharded:
        return found.bfloat16()
    mesh = init_device_mesh("cpu", (2,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=POLICY)
    return fully_shard(found, mesh=mesh, mp_policy=POLICY)


def timed(one: nn.Module) -> tuple[float, float]:
    """Seconds of the process in a forward and a backward pass."""
    one.zero_grad(set_to_none=True)
    ids = torch.arange(8)[None]
    begins = time.process_time()
    loss = one(input_ids=ids, labels=ids).loss
    between = time.process_time()
    loss.backward()
    return between - begins, time.process_time() - between


def main() -> None:
    """Measure all in turns."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    cases = [(more, trained) for more in (0, MORE) for trained in (True, False)]
    models = {(*case, way): model(case[0], trained=case[1], sharded=way) for case in cases for way in (False, True)}
    times: dict[tuple[int, bool, bool], list[tuple[float, float]]] = {name: [] for name in models}
    for turn in range(ROUNDS + WARM):
        for name, one in models.items():
            found = timed(one)
            if turn >= WARM:
                times[name].append(found)
    for choose in (statistics.median, min):
        a_launch = sum(map(choose, zip(*times[0, True, False], strict=True))) / LAYERS / LAUNCHES
        for more, trained in cases:
            whole, sharded = (list(map(choose, zip(*times[more, trained, way], strict=True))) for way in (False, True))
            forward, backward = ((b - a) / (LAYERS + 1) / a_launch for a, b in zip(whole, sharded, strict=True))
            sys.stdout.write(
                f"{choose.__name__}, {9 + more} parameters, {'trained' if trained else 'frozen'}: "
                f"{forward:.0f} launches forward, {backward:.0f} backward, of {a_launch * 1e6:.1f} us\n"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
