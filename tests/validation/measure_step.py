"""Measure real training steps: the script behind the measured cases of this folder.

    python measure_step.py cases.json results.jsonl            # cases of one GPU
    torchrun --nproc-per-node N measure_step.py ...            # cases that say "gpus": N

Uses public libraries only (torch, transformers, peft) and random weights and tokens. A case is an object: {id, model (a
config.json's fields), micro_batch, sequence, gpus, tp (ranks that share each layer, as `tensor_parallel.py` has it; the
others are data parallel), compile, recompute, lora {rank, targets}, master_weights, optimizer ("fused", "foreach",
"sgd", "muon" or, with torchao, "adamw_8bit"), data_parallel ("fsdp2", "ddp" or, with deepspeed, "zero2"), settings (its
own), dp_replicate (of FSDP2), ep (ranks that share experts, as `expert_parallel.py` does it), made ("sharded": as
shards, on the meta device first), accumulate, swap {parts, prefetch} as `activation_swap.py` has it, steps, profile,
history}. One line of JSON a case is appended to the results: median step time by wall clock between synchronised
steps, allocator peaks, and, if asked, GPU time by operator and shape. With "history", a number of steps, every
allocation from the model's making to the end of those first steps is written beside the results, as
`allocation_history.py` says.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from activation_swap import Swapper
from allocation_history import History
from expert_parallel import rows_by_expert
from fully_sharded import fill, layers, shard
from tensor_parallel import split
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel

GIB = 2**30
Result = dict[str, Any]


def main(measured: Callable[[dict[str, Any], int, Path | None], Result] | None = None) -> None:
    """Measure every case of the first argument's file that this number of processes can run, by *measured*."""
    measured = measured or measure
    cases_path, results_path = map(Path, sys.argv[1:3])
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    if world > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    cases = [case for case in json.loads(cases_path.read_text()) if case.get("gpus", 1) == world]
    for case in cases:
        began = time.perf_counter()
        try:
            history = results_path.parent / f"{case['id']}.allocations.txt.gz" if case.get("history") else None
            with loss_parallel():  # concerns logits that are split alone
                result = measured(case, world, history if rank == 0 else None)
        except torch.cuda.OutOfMemoryError as error:
            result = {"error": f"out of memory: {str(error)[:200]}"}
        result |= {"id": case["id"], "case": case, "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
        result["wall_s"] = time.perf_counter() - began
        if rank == 0:
            with results_path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            sys.stdout.write(json.dumps({k: v for k, v in result.items() if k not in {"case", "profile"}}) + "\n")
            sys.stdout.flush()
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    if world > 1:
        dist.destroy_process_group()


def measure(case: dict[str, Any], world: int, history_path: Path | None) -> dict[str, Any]:
    """Run the steps of one case and read the clocks and the allocator, whose history may go to *history_path*."""
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)  # ranks that share layers read the same tokens
    history = History() if history_path else None
    model = build(case, world)
    optimizer = Optimizers(model, case.get("optimizer", "fused"))
    engine = None
    if case.get("data_parallel") == "zero2":
        model = engine = zero2(model, optimizer, case)
    swap = case.get("swap")
    swapper = Swapper(layers(model), swap["parts"], swap.get("prefetch", 1)) if swap else None
    tokens = torch.randint(0, case["model"]["vocab_size"], (case["micro_batch"], case["sequence"]), device="cuda")

    def step() -> None:
        count = case.get("accumulate", 1)
        for number in range(count):
            waits = case.get("data_parallel") == "ddp" and number + 1 < count
            with model.no_sync() if waits else contextlib.nullcontext():
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                engine.backward(loss) if engine else loss.backward()
            if engine:
                engine.step()
        if swapper:
            swapper.finish()
        if not engine:
            optimizer.step()
            optimizer.zero_grad()

    result = observed(step, case, history, history_path)
    if swapper:
        swapper.close()
    rows = {"rows_by_expert": rows_by_expert(layers(model))} if case.get("ep", 1) > 1 else {}
    return {"parameters": sum(p.numel() for p in model.parameters()), **result, **rows}


def observed(step: Callable[[], None], case: dict[str, Any], history: History | None, path: Path | None) -> Result:
    """What the clocks and the allocator show of a case's steps; the *history* of the first ones goes to *path*."""
    first_peak = 0
    for number in range(max(2, case.get("history", 0))):
        if history:
            history.mark(f"step {number}")
        step()
        first_peak = first_peak or torch.cuda.max_memory_allocated()
    if history and path:
        history.write(path)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    resident = torch.cuda.memory_allocated()
    times = [timed(step) for _ in range(case.get("steps", 5))]
    result = figures(times) | {"resident_bytes": resident, "first_step_peak_allocated_bytes": first_peak}
    if case.get("profile"):
        result["profile"] = profile(step)
    return result


def figures(times: list[float]) -> Result:
    """What the *times* of steps and the allocator say."""
    free, total = torch.cuda.mem_get_info()
    return {
        "step_s": statistics.median(times),
        "step_min_s": min(times),
        "step_max_s": max(times),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "outside_allocator_bytes": total - free - torch.cuda.memory_reserved(),
        "device_bytes": total,
    }


class Optimizers:
    """The optimizer of a kind, as one: Muon takes hidden matrices and leaves the others to AdamW."""

    def __init__(self, model: torch.nn.Module, kind: str) -> None:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        ends = ("embed", "lm_head")
        hidden = [p for name, p in trained.items() if p.ndim == 2 and not any(end in name for end in ends)]
        if kind == "muon":
            of_matrices = {id(p) for p in hidden}
            others = [p for p in trained.values() if id(p) not in of_matrices]
            self.parts = [torch.optim.Muon(hidden, lr=1e-5), torch.optim.AdamW(others, lr=1e-5, fused=True)]
        elif kind == "adamw_8bit":
            from torchao.optim import AdamW8bit

            self.parts = [AdamW8bit(list(trained.values()), lr=1e-5)]
        elif kind == "sgd":
            self.parts = [torch.optim.SGD(list(trained.values()), lr=1e-5, fused=True)]
        else:
            fused = kind == "fused"
            self.parts = [torch.optim.AdamW(by_mesh(trained), lr=1e-5, fused=fused, foreach=not fused)]

    def step(self) -> None:
        """Update the parameters."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Free the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def by_mesh(parameters: dict[str, torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Groups of *parameters* whose shards lie on the same ranks: an optimizer's kernel takes no others together."""
    groups: dict[Any, list[torch.nn.Parameter]] = {}
    for parameter in parameters.values():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": group} for group in groups.values()]


def zero2(model: torch.nn.Module, optimizer: Optimizers, case: dict[str, Any]) -> Any:
    """DeepSpeed's engine around *model* in bf16."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": case.get("accumulate", 1),
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2, **case.get("settings", {})},
    }
    return deepspeed.initialize(model=model, optimizer=optimizer.parts[0], config=config)[0]


def timed(step: Any) -> float:
    """Wall time of one synchronised step."""
    torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()
        torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def build(case: dict[str, Any], world: int) -> torch.nn.Module:
    """The model of *case* with random weights, adapted, recomputed, sharded and compiled as it says."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields, in_shards = dict(case["model"]), case.get("made") == "sharded"
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation = "sdpa"
    dtype = torch.float32 if case.get("master_weights") else torch.bfloat16
    with torch.device("meta" if in_shards else "cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.train()
    if lora := case.get("lora"):
        model = adapted(model, lora)
    if case.get("recompute"):
        recompute(model, inside=bool(case.get("compile")))
        if case.get("lora"):
            model.enable_input_require_grads()
    way, settings, copies = case.get("data_parallel", "fsdp2"), case.get("settings", {}), world
    if tp := case.get("tp"):
        copies = world // tp
        mesh = init_device_mesh("cuda", (copies, tp), mesh_dim_names=("dp", "tp"))
        split(model, mesh["tp"])
        settings = settings | {"mesh": mesh["dp"]}
        torch.cuda.empty_cache()
    if copies > 1 and way == "fsdp2":
        shard(model, settings, replicas=case.get("dp_replicate", 1), ep=case.get("ep", 1))
    if in_shards:
        fill(model)
    if copies > 1 and way == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, **settings)
    if case.get("compile"):
        # Layer by layer, as trainers do: compiled as a whole, the model would build an explicit attention mask.
        for layer in layers(model):
            layer.compile()
    return model


def recompute(model: torch.nn.Module, *, inside: bool) -> None:
    """Run layers again in backward; *inside* of what is compiled, as trainers do, so that it stops early there too."""
    if not inside:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    for number, layer in enumerate(layers(model)):
        layers(model)[number] = checkpoint_wrapper(layer)


def adapted(model: torch.nn.Module, lora: dict[str, Any]) -> torch.nn.Module:
    """*model* with LoRA adapters on the named modules and everything else frozen."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=lora["rank"], target_modules=lora["targets"], lora_dropout=0.0)
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def profile(step: Any) -> dict[str, Any]:
    """GPU time of one step by operator and input shapes, by kernel name, and how many kernels were launched."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as found:
        step()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = kernels.setdefault(event.name[:160], [0.0, 0])
            entry[0] += event.self_device_time_total / 1e3
            entry[1] += 1
    rows = [
        [row.key, str(row.input_shapes)[:200], row.self_device_time_total / 1e3, row.count]
        for row in found.key_averages(group_by_input_shape=True)
        if row.self_device_time_total > 0
    ]
    return {
        "launches": sum(int(n) for _, n in kernels.values()),
        "gpu_ms": sum(ms for ms, _ in kernels.values()),
        "kernels": sorted(([k, ms, n] for k, (ms, n) in kernels.items()), key=lambda row: -row[1])[:120],
        "operators": sorted(rows, key=lambda row: -row[2])[:200],
    }


if __name__ == "__main__":
    main()
