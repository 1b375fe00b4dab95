"""The split model of tests/validation/tensor_parallel.py computes what the whole one does: two processes on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parent / "validation"))

VOCABULARY, STEPS = 64, 2


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_losses_and_gradients_are_those_of_the_whole_model(way):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, way]
    ran = subprocess.run(launch, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["split"] == pytest.approx(told["whole"], rel=1e-5)
    assert told["furthest_gradient"] < 1e-4
    # Of 7 projections of a layer and both ends every rank has half, of the three norms all.
    assert told["held"] == pytest.approx((told["parameters"] - 3 * 32) / 2 + 3 * 32)


def compare(way):
    import torch.distributed as dist
    from tensor_parallel import split
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    whole, model = small_llama(), small_llama()
    split(model, init_device_mesh("cpu", (2,)))
    if way == "compiled":
        for layer in model.model.layers:
            layer.compile()
    (expected, theirs), (found, ours) = trained(whole), trained(model)
    far = [float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()) for name in theirs]
    told = {"whole": expected, "split": found, "furthest_gradient": max(far)}
    told["parameters"] = sum(p.numel() for p in whole.parameters())
    told["held"] = sum(p.to_local().numel() for p in model.parameters())
    dist.barrier()
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(told) + "\n")
    dist.destroy_process_group()


def small_llama():
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    widths = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "vocab_size": VOCABULARY}
    counts = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model("llama", **widths, **counts, tie_word_embeddings=False)
    config._attn_implementation = "sdpa"
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def trained(model):
    """Losses of some steps, and the gradients of the last one."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel

    def whole(tensor):
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    tokens = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(1))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with loss_parallel():
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
        losses.append(float(whole(loss)))
        gradients = {name: whole(p.grad).clone() for name, p in model.named_parameters()}
        optimizer.step()
    return losses, gradients


if __name__ == "__main__":
    compare(sys.argv[1])
