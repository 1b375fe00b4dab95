import pytest
from small_jobs import Small

from simulator.forecast.assembly import assemble_job
from simulator.forecast.errors import Refused

PLAIN = "training.optimizer={state_dtype: bf16, master_weights: false}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.zero=0", PLAIN), "parallel.dp_shard: found 16, but PyTorch's DDP is simulated for one axis.*; "
         "nearest: dp_replicate 16"),
        (("training.zero=0", "parallel={dp_replicate: 16}"), "optimizer.master_weights: DDP updates the parameters"),
        (("training.zero=2", "parallel={dp_replicate: 2, dp_shard: 8}"), "parallel.dp_replicate: found 2"),
        (("training.zero=2", "parallel={dp_shard: 8, tp: 2}"), "parallel.tp: found 2, .*; allowed: 1"),
        (("training.zero=2", "training.optimizer.name=muon"), "found muon, but zero 2 updates one flat share"),
        (("training.zero=2", PLAIN), "master_weights: zero 2 always keeps"),
        (("training.zero=2", "training.fsdp.prefetch=2"), "training.fsdp: zero 2 has no such settings; .* zero 1 or 3"),
        (("training.zero=2", "training.float8={}"), "training.float8: casts of weights are not simulated under zero 2"),
        (("training.ddp.bucket_bytes=1 MiB",), "training.ddp: zero 3 has no such settings"),
        (("training.deepspeed.overlap_comm=true", "training.zero=1"), "training.deepspeed: zero 1 has no such"),
        (("training.megatron={overlap_grad_reduce: true}",), "training.megatron: zero 3 has no such settings"),
        (("training.zero=1", "training.megatron={overlap_param_gather: true}"), "wants overlap_grad_reduce with it"),
        (("training.zero=1", "training.megatron={gradient_accumulation_fusion: false}", "training.execution=eager"),
         "only matmuls of execution fused add into the buffer"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(small: Small, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(Refused, match=message):
        assemble_job(*small("dense", *overrides))
