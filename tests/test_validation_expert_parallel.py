"""Spread experts of tests/validation/expert_parallel.py compute what all on one rank do: two processes on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parent / "validation"))

TOKENS, EXPERTS, TOP_K, LAYERS = 32, 8, 3, 2


def test_losses_and_gradients_are_those_of_experts_on_one_rank():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    ran = subprocess.run(launch, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["spread"] == pytest.approx(told["whole"], rel=1e-5)
    assert told["furthest_gradient"] < 1e-4
    assert told["experts_held"] == EXPERTS // 2
    # Every token of both ranks is a row of each expert that it chose.
    assert [sum(layer) for layer in told["rows"]] == [2 * TOKENS * TOP_K] * LAYERS


def compare():
    import torch.distributed as dist
    from expert_parallel import rows_by_expert, spread_experts

    dist.init_process_group("gloo")
    rank, whole, model = dist.get_rank(), small_qwen(), small_qwen()
    for layer in model.model.layers:
        spread_experts(layer, dist.group.WORLD)
    tokens = torch.randint(0, 64, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    expected, found = trained(whole, tokens), trained(model, tokens[rank : rank + 1])
    dist.all_reduce(found)
    far, own = [], EXPERTS // 2
    for one, other in zip(model.model.layers, whole.model.layers, strict=True):
        for name, weight in one.mlp.experts.named_parameters():
            theirs = getattr(other.mlp.experts, name).grad[rank * own : (rank + 1) * own]
            far.append(float((weight.grad / 2 - theirs).abs().max() / theirs.abs().max()))
    told = {"whole": float(expected), "spread": float(found) / 2, "furthest_gradient": max(far)}
    told["experts_held"] = len(model.model.layers[0].mlp.experts.down_proj)
    told["rows"] = rows_by_expert(model.model.layers)
    if rank == 0:
        sys.stdout.write(json.dumps(told) + "\n")
    dist.destroy_process_group()


def small_qwen():
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    widths = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "head_dim": 8, "vocab_size": 64}
    counts = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "norm_topk_prob": True, "decoder_sparse_step": 1}
    config = AutoConfig.for_model("qwen3_moe", **widths, **counts, **experts, mlp_only_layers=[])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def trained(model, tokens):
    """The loss, whose gradients are made."""
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.detach()


if __name__ == "__main__":
    compare()
