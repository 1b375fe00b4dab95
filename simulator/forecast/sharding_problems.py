"""What DDP and ZeRO-2 do not go with, and settings of a way of sharding that is not the one asked for."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.forecast.scenario import Scenario, Training

_SETTINGS = {"ddp": (0,), "megatron": (1,), "deepspeed": (2,), "fsdp": (1, 3)}
"""The values of `zero` that each section belongs to."""
_OTHER = {"dp_shard": "dp_replicate", "dp_replicate": "dp_shard"}


def sharding_problems(scenario: Scenario) -> Iterator[str]:
    """All problems, each beginning with the path of the value."""
    training, zero = scenario.training, scenario.training.zero
    for name, stages in _SETTINGS.items():
        known = zero in stages or (name == "megatron" and training.megatron_fsdp)
        if name in training.model_fields_set and not known:
            allowed = " or ".join(map(str, stages))
            yield f"training.{name}: zero {zero} has no such settings; leave it out, or zero {allowed}"
    yield from _megatron(training)
    yield from _post_forward(scenario)
    yield from _made_whole(scenario)
    yield from _together(scenario)
    yield from _megatron_fsdp(scenario)
    if zero in (0, 2) and training.float8 is not None:
        yield f"training.float8: casts of weights are not simulated under zero {zero}; allowed: zero 1 or 3"
    if zero == 0:
        yield from _degrees(scenario, "PyTorch's DDP", "dp_shard")
        if training.optimizer.master_weights:
            yield (
                "training.optimizer.master_weights: DDP updates the parameters themselves, and fp32 ones under "
                "autocast keep fp32 activations, which are not simulated; allowed: false"
            )
    if zero == 2:
        yield from _degrees(scenario, "DeepSpeed's ZeRO-2", "dp_replicate")
        yield from _flat_share(training)


def _megatron(training: Training) -> Iterator[str]:
    """Settings of Megatron-LM that it does not take together, or that are not simulated."""
    asked = training.megatron
    if asked.overlap_param_gather and not asked.overlap_grad_reduce:
        yield "training.megatron.overlap_param_gather: Megatron-LM wants overlap_grad_reduce with it; allowed: both"
    if asked.overlap_grad_reduce and training.pipeline_schedule == "dualpipe":
        yield (
            "training.megatron.overlap_grad_reduce: buckets of two copies of the model are not simulated; allowed: "
            "false, or pipeline_schedule 1f1b, gpipe or zb_h1"
        )
    if not asked.gradient_accumulation_fusion and training.execution != "fused":
        yield (
            "training.megatron.gradient_accumulation_fusion: only matmuls of execution fused add into the buffer; "
            "leave it out"
        )


def _megatron_fsdp(scenario: Scenario) -> Iterator[str]:
    """What is not known of Megatron-FSDP."""
    training, asked = scenario.training, scenario.training.fsdp
    if asked.implementation != "megatron":
        return
    where = "training.fsdp.implementation: found megatron"
    if training.zero != 3:
        yield f"{where}, but zero {training.zero} shards no parameters; allowed: fsdp2, or zero 3"
    if training.execution != "fused":
        yield f"{where} with execution {training.execution}; known with fused alone (Transformer Engine)"
    if scenario.parallel.pp > 1:
        yield f"{where} with pp({scenario.parallel.pp}); known without pipeline stages alone: pp 1"
    set_apart = sorted(asked.model_fields_set & {"reshard_after_forward", "made", "micro_batches_per_gather"})
    for name in set_apart:
        yield f"training.fsdp.{name}: is FSDP2's, and training.fsdp.implementation is megatron; leave it out"
    for name in sorted(training.megatron.model_fields_set & {"overlap_grad_reduce", "overlap_param_gather"}):
        yield f"training.megatron.{name}: Megatron-FSDP reduces and gathers beside compute anyway; leave it out"
    if training.offload.optimizer or training.offload.parameters:
        yield f"{where} with training.offload, which is not known of it; leave one out"


def _post_forward(scenario: Scenario) -> Iterator[str]:
    """A number of ranks that does not part the groups which parameters are sharded over."""
    kept, split = scenario.training.fsdp.reshard_after_forward, scenario.parallel
    if isinstance(kept, bool):
        return
    where = "training.fsdp.reshard_after_forward"
    if scenario.training.zero != 3:
        yield f"{where}: found {kept}, but zero {scenario.training.zero} reshards nothing; allowed: zero 3"
        return
    shards, ways = split.dp_shard * split.cp, f"dp_shard({split.dp_shard}) * cp({split.cp})"
    if shards % kept or kept >= shards:
        near = [n for n in range(2, shards) if shards % n == 0]
        nearest = min(near, key=lambda n: abs(n - kept)) if near else "true"
        yield f"{where}: found {kept}, which is no part of {ways} = {shards} ranks; nearest: {nearest}"
        return
    experts = shards * split.tp // (split.ep * split.etp)
    if experts > kept and experts % kept:
        yield f"{where}: found {kept}, which does not part the {experts} ranks that share each expert's parameters"


def _made_whole(scenario: Scenario) -> Iterator[str]:
    """Ways of splitting the model that a whole one would not have gone through yet."""
    if scenario.training.fsdp.made != "whole":
        return
    where = "training.fsdp.made: found whole, but"
    if scenario.training.zero != 3:
        yield f"{where} zero {scenario.training.zero} keeps parameters whole; leave it out, or zero 3"
    for axis in ("tp", "pp", "ep", "etp"):
        degree = getattr(scenario.parallel, axis)
        if degree > 1:
            yield f"{where} {axis}({degree}) splits the model before FSDP2 does; allowed: sharded, or {axis} 1"


def _together(scenario: Scenario) -> Iterator[str]:
    """Micro-batches that cannot share a gather."""
    training, split, asked = scenario.training, scenario.parallel, scenario.training.fsdp.micro_batches_per_gather
    if asked == 1:
        return
    where = f"training.fsdp.micro_batches_per_gather: found {asked}"
    if training.zero != 3:
        yield f"{where}, but zero {training.zero} gathers no layer for a micro-batch; allowed: 1, or zero 3"
    if split.pp > 1:
        yield f"{where}, but pipeline stages keep what they have gathered for all micro-batches; allowed: 1, or pp 1"
    if training.images is not None:
        yield f"{where}, and images of several micro-batches in one pass are not simulated; allowed: 1"
    ranks = split.dp_replicate * split.dp_shard * training.micro_batch_sequences
    count, rest = divmod(training.global_batch_sequences, ranks)
    if not rest and count % asked:
        near = [n for n in range(1, count + 1) if count % n == 0]
        yield (
            f"{where}, which does not divide the {count} micro-batches of a step; nearest: "
            f"{min(near, key=lambda n: (abs(n - asked), -n))}"
        )


def _degrees(scenario: Scenario, system: str, other_data_axis: str) -> Iterator[str]:
    """Axes beside the one that the data is spread along."""
    for axis in (other_data_axis, "tp", "cp", "pp", "ep", "etp"):
        degree = getattr(scenario.parallel, axis)
        if degree > 1:
            nearest = f"nearest: {_OTHER[axis]} {degree}" if axis in _OTHER else "allowed: 1"
            yield f"parallel.{axis}: found {degree}, but {system} is simulated for one axis of data; {nearest}"


def _flat_share(training: Training) -> Iterator[str]:
    """What ZeRO-2's flat share of fp32 master weights rules out."""
    optimizer = training.optimizer
    if optimizer.name not in ("adamw", "sgd"):
        yield (
            f"training.optimizer.name: found {optimizer.name}, but zero 2 updates one flat share that knows no "
            "tensors; allowed: adamw, sgd"
        )
    if not optimizer.master_weights:
        yield "training.optimizer.master_weights: zero 2 always keeps an fp32 share of them; allowed: true"
    if optimizer.name == "adamw" and optimizer.state_dtype != "fp32":
        yield "training.optimizer.state_dtype: zero 2 keeps moments in the format of its share, fp32; allowed: fp32"
