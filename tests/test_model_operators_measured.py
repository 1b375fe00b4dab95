"""Eager and compiled operators against training steps that were measured and profiled on one H200.

torch 2.11, transformers 5.17, bf16 weights, scaled-dot-product attention through cuDNN, experts through grouped_mm.
Peaks are torch.cuda.max_memory_allocated less what is resident between steps (weights and AdamW states); they fall into
the gradient of the loss. Launches are of one more layer, memory sets and cuBLAS's own helpers left out.
"""

import pytest
from model_operators import saved_bytes

from simulator.model.architecture import (
    Architecture,
    DenseFeedForward,
    FeedForward,
    GroupedAttention,
    Layer,
    MixtureOfExperts,
)
from simulator.model.operator import Execution, Workload
from simulator.model.operators.layers import layer_operators, loss_operators

GIB = 2**30


def decoder(
    layers: int, hidden: int, vocabulary: int, attention: GroupedAttention, feed_forward: FeedForward
) -> Architecture:
    stack = tuple(Layer(index, attention, feed_forward) for index in range(layers))
    return Architecture("test", hidden, vocabulary, stack)


LLAMA_1B = decoder(16, 2048, 128_256, GroupedAttention(32, 8, 64), DenseFeedForward(8192))
QWEN_MOE = decoder(8, 2048, 151_936, GroupedAttention(32, 4, 128, qk_norm="head"), MixtureOfExperts(128, 8, 768))
MIXTRAL = decoder(3, 4096, 32_000, GroupedAttention(32, 8, 128), MixtureOfExperts(8, 2, 14_336))


def peak_beside_weights(architecture: Architecture, workload: Workload) -> float:
    """All that is kept, and the loss's temporaries with the gradient that it hands on."""
    rows = workload.tokens * getattr(architecture.layers[0].feed_forward, "top_k", 0)
    kept = sum(
        saved_bytes(layer_operators(architecture, layer, workload), routed_rows=rows) for layer in architecture.layers
    )
    loss = loss_operators(architecture, workload, "plain")
    return kept + saved_bytes(loss) + loss[-1].backward_workspace_bytes + loss[-2].output_bytes


@pytest.mark.parametrize(
    ("architecture", "sequences", "execution", "peak_gib", "resident_gib"),
    [
        (LLAMA_1B, 4, "eager", 57.237953, 6.969199),
        (QWEN_MOE, 2, "eager", 57.316041, 31.397723),
        (MIXTRAL, 2, "eager", 37.012496, 25.856194),
        (QWEN_MOE, 2, "compiled", 54.424927, 31.397723),
    ],
    ids=["llama-1b", "qwen3-moe", "mixtral", "qwen3-moe-compiled"],
)
def test_peak_memory_of_a_step(
    architecture: Architecture, sequences: int, execution: Execution, peak_gib: float, resident_gib: float
) -> None:
    found = peak_beside_weights(architecture, Workload((4096,) * sequences, execution)) / GIB
    assert found == pytest.approx(peak_gib - resident_gib, rel=0.003)


@pytest.mark.parametrize(
    ("architecture", "sequences", "execution", "forward", "backward"),
    [
        (LLAMA_1B, 4, "eager", 38, 79),
        (LLAMA_1B, 4, "compiled", 14, 28),
        (QWEN_MOE, 2, "eager", 94, 165),
        (QWEN_MOE, 2, "compiled", 38, 42),
    ],
    ids=["llama-1b", "llama-1b-compiled", "qwen3-moe", "qwen3-moe-compiled"],
)
def test_launches_of_a_layer(
    architecture: Architecture, sequences: int, execution: Execution, forward: int, backward: int
) -> None:
    operators = layer_operators(architecture, architecture.layers[1], Workload((4096,) * sequences, execution))
    local = [operator for operator in operators if not operator.expert_parallel_only]
    assert sum(k.launches for o in local for k in o.forward) == pytest.approx(forward, abs=2)
    gradients = [k for o in local for k in (*o.backward, *o.backward_weight)]
    assert sum(k.launches for k in gradients) == pytest.approx(backward, abs=2)


def test_what_one_token_of_an_eager_llama_layer_keeps() -> None:
    workload = Workload((4096,), "eager")
    kept = {s.name: s.bytes / 4096 for o in layer_operators(LLAMA_1B, LLAMA_1B.layers[0], workload) for s in o.saved}
    # fp32 copy, normalised product and output of each norm; q, k, v, output and row sums of the core; gate and up,
    # silu's result, the product
    assert kept == {
        "input_layernorm.fp32": 8192,
        "input_layernorm.normalised": 4096,
        "mixer_input": 4096,
        "query": 4096,
        "key": 1024,
        "value": 1024,
        "attention_output": 4096,
        "attention_statistics": 128,
        "post_attention_layernorm.fp32": 8192,
        "post_attention_layernorm.normalised": 4096,
        "feed_forward_input": 4096,
        "hidden": 32_768,
        "activation.function": 16_384,
        "activated": 16_384,
    }
    assert sum(kept.values()) == 108_672
