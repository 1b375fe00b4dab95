"""Kimi K3's layers for training with adapters, over packed tokens, from this project's kernels and PyTorch's.

Kimi delta attention or unrotated latent attention with an output gate; a dense feed-forward part or latent experts with
shared ones; each behind a mix of the block's residual and the stream, and a norm. Base weights are frozen; linear
layers of attention, shared experts and latent projections carry adapters as peft runs them. Gate and up of a
feed-forward part are one product, the weights of routed rows are applied inside the activation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as f
from expert_exchange import through_experts
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels.gated_norm import gated_norm, sigmoid_gate
from kernels.gated_unit import situ
from kernels.grouped_gemm import grouped_gemm
from kernels.kda_backward import kda
from kernels.loss import logit_loss
from kernels.residual_mix import residual_mix
from kernels.rms_norm import rms_norm
from kernels.short_convolution import TAPS, short_convolution

ADAPTER_SCALE = 2.0
"""Of an adapter's result: peft's lora_alpha over the rank."""
ROUTED_SCALE = 2.5
"""Of routed experts' weights (routed_scaling_factor)."""

Fields = dict[str, Any]


def frozen(*shape: int) -> nn.Parameter:
    """A weight that is not trained."""
    return nn.Parameter(torch.empty(shape), requires_grad=False)


class Adapted(nn.Module):
    """Linear layers over one input as one frozen product, each with an adapter of *rank*."""

    def __init__(self, into: int, outs: tuple[int, ...], rank: int) -> None:
        super().__init__()
        self.weight = frozen(sum(outs), into)
        self.a = nn.ParameterList(torch.empty(rank, into, dtype=torch.float32) for _ in outs)
        self.b = nn.ParameterList(torch.empty(out, rank, dtype=torch.float32) for out in outs)

    def forward(self, x: Tensor) -> Tensor:
        """The product, and what the adapters add to it."""
        added = [f.linear(f.linear(x, a), b) * ADAPTER_SCALE for a, b in zip(self.a, self.b, strict=True)]
        return f.linear(x, self.weight) + (torch.cat(added, dim=1) if len(added) > 1 else added[0])


class DeltaAttention(nn.Module):
    """Kimi delta attention with a full-rank output gate."""

    def __init__(self, fields: Fields, rank: int) -> None:
        super().__init__()
        linear, hidden = fields["linear_attn_config"], fields["hidden_size"]
        self.heads, self.dim = linear["num_heads"], linear["head_dim"]
        width = self.heads * self.dim
        self.q, self.k, self.v, self.g = (Adapted(hidden, (width,), rank) for _ in range(4))
        self.f_a, self.f_b = Adapted(hidden, (self.dim,), rank), Adapted(self.dim, (width,), rank)
        self.beta, self.o = Adapted(hidden, (self.heads,), rank), Adapted(width, (hidden,), rank)
        self.q_conv, self.k_conv, self.v_conv = (frozen(width, TAPS) for _ in range(3))
        self.log_rate, self.decay_bias, self.norm = frozen(self.heads), frozen(self.heads, self.dim), frozen(self.dim)

    def forward(self, x: Tensor, length: int) -> Tensor:
        """Over sequences of *length* tokens."""
        q, k, v = (
            short_convolution(project(x), taps, length).view(-1, self.heads, self.dim)
            for project, taps in ((self.q, self.q_conv), (self.k, self.k_conv), (self.v, self.v_conv))
        )
        decay = self.f_b(self.f_a(x)).view_as(q)
        inputs = (q, k, v, decay, self.beta(x), self.log_rate.float().exp(), self.decay_bias.float())
        mixed, _ = kda(inputs, (length,) * (len(x) // length))
        return self.o(gated_norm(mixed, self.g(x).view_as(mixed), self.norm).flatten(1))


class LatentAttention(nn.Module):
    """Multi-head latent attention without rotation, expanded to keys and values of every head, with an output gate."""

    def __init__(self, fields: Fields, rank: int) -> None:
        super().__init__()
        hidden, self.heads = fields["hidden_size"], fields["num_attention_heads"]
        self.nope, self.rope, self.value = (fields[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
        latents, self.latent = fields["q_lora_rank"], fields["kv_lora_rank"]
        width = self.heads * self.value
        self.q_a, self.q_norm = Adapted(hidden, (latents,), rank), frozen(latents)
        self.q_b = Adapted(latents, (self.heads * (self.nope + self.rope),), rank)
        self.kv_a, self.kv_norm = Adapted(hidden, (self.latent + self.rope,), rank), frozen(self.latent)
        self.kv_b = Adapted(self.latent, (self.heads * (self.nope + self.value),), rank)
        self.g, self.o = Adapted(hidden, (width,), rank), Adapted(width, (hidden,), rank)

    def forward(self, x: Tensor, length: int) -> Tensor:
        """Causal attention within sequences of *length* tokens."""
        query = self.q_b(rms_norm(self.q_a(x), self.q_norm)).view(len(x), self.heads, -1)
        latent, shared = self.kv_a(x).split([self.latent, self.rope], dim=1)
        expanded = self.kv_b(rms_norm(latent, self.kv_norm)).view(len(x), self.heads, -1)
        own, value = expanded.split([self.nope, self.value], dim=2)
        key = torch.cat([own, shared[:, None].expand(-1, self.heads, -1)], dim=2)
        q, k, v = (t.unflatten(0, (-1, length)).transpose(1, 2) for t in (query, key, value))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(len(x), -1)
        return self.o(sigmoid_gate(mixed, self.g(x)))


class FeedForward(nn.Module):
    """A gated feed-forward part, frozen, or with adapters of *rank*."""

    def __init__(self, hidden: int, inner: int, rank: int = 0) -> None:
        super().__init__()
        outs = (inner, inner)
        self.gate_up: nn.Module = Adapted(hidden, outs, rank) if rank else Frozen(hidden, sum(outs))
        self.down: nn.Module = Adapted(inner, (hidden,), rank) if rank else Frozen(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Down of SiTU of gate and up."""
        return self.down(situ(self.gate_up(x)))


class Frozen(nn.Module):
    """A frozen linear layer."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = frozen(out, into)

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return f.linear(x, self.weight)


class Experts(nn.Module):
    """This rank's share of the routed experts."""

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up, self.down = frozen(experts, width, 2 * inner), frozen(experts, inner, width)
        self.ends: Tensor | None = None

    def forward(self, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        """Rows of one expert after the other, each times its weight; where they end is remembered."""
        self.ends = ends
        return grouped_gemm(situ(grouped_gemm(rows, self.gate_up, ends), weights), self.down, ends)


class MixtureOfExperts(nn.Module):
    """Routed experts between latent projections, beside shared ones.

    *preference*, [tokens, experts], is added to the router's scores, which lie between 0 and 1: where it is 1 is what
    tokens choose, known before a run.
    """

    def __init__(self, fields: Fields, rank: int) -> None:
        super().__init__()
        hidden, latent, inner = (
            fields[name] for name in ("hidden_size", "routed_expert_hidden_size", "moe_intermediate_size")
        )
        self.count, self.top = fields["num_experts"], fields["num_experts_per_token"]
        self.router, self.bias = Frozen(hidden, self.count), frozen(self.count)
        self.latent_down, self.latent_up = Adapted(hidden, (latent,), rank), Adapted(latent, (hidden,), rank)
        self.norm = frozen(latent)
        self.experts = Experts(self.count // dist.get_world_size(), latent, inner)
        self.shared = FeedForward(hidden, fields["num_shared_experts"] * inner, rank)
        self.preference: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """What both kinds of experts add."""
        scores = self.router(x).float().sigmoid()
        chosen = (scores + self.bias + self.preference).topk(self.top, dim=1).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(1, keepdim=True) * ROUTED_SCALE
        routed = through_experts(self.latent_down(x), chosen, weights, self.count, self.experts)
        return self.latent_up(rms_norm(routed, self.norm)) + self.shared(x)


class Layer(nn.Module):
    """A mixer and a feed-forward part; *recompute*: only its input is kept, and all of it runs again."""

    def __init__(self, fields: Fields, number: int, rank: int, *, recompute: bool) -> None:
        super().__init__()
        hidden, full = fields["hidden_size"], number + 1 in fields["linear_attn_config"]["full_attn_layers"]
        self.mixer: nn.Module = LatentAttention(fields, rank) if full else DeltaAttention(fields, rank)
        dense = number < fields["first_k_dense_replace"]
        self.feed_forward = (
            FeedForward(hidden, fields["intermediate_size"]) if dense else MixtureOfExperts(fields, rank)
        )
        self.mixer_norm, self.feed_forward_norm = frozen(hidden), frozen(hidden)
        self.mixer_mix_norm, self.feed_forward_mix_norm = frozen(hidden), frozen(hidden)
        self.mixer_mix, self.feed_forward_mix = frozen(1, hidden), frozen(1, hidden)
        self.recompute = recompute

    def forward(self, stream: Tensor, block: Tensor, length: int) -> Tensor:
        """The stream behind the layer."""
        if self.recompute:
            return checkpoint(self._run, stream, block, length, use_reentrant=False)
        return self._run(stream, block, length)

    def _run(self, stream: Tensor, block: Tensor, length: int) -> Tensor:
        mixed = residual_mix(block, stream, self.mixer_mix_norm, self.mixer_mix)
        stream = stream + self.mixer(rms_norm(mixed, self.mixer_norm), length)
        mixed = residual_mix(block, stream, self.feed_forward_mix_norm, self.feed_forward_mix)
        return stream + self.feed_forward(rms_norm(mixed, self.feed_forward_norm))


class Kimi(nn.Module):
    """The model, as many layers as one block of residuals has at most."""

    def __init__(self, fields: Fields, rank: int, *, recompute: bool) -> None:
        super().__init__()
        hidden, words, count = fields["hidden_size"], fields["vocab_size"], fields["num_hidden_layers"]
        if count > fields["attn_res_block_size"]:
            message = f"{count} layers: the mix of residuals knows one block of {fields['attn_res_block_size']}"
            raise ValueError(message)
        self.embedding, self.head = frozen(words, hidden), Frozen(hidden, words)
        self.layers = nn.ModuleList(Layer(fields, number, rank, recompute=recompute) for number in range(count))
        self.norm, self.mix_norm, self.mix = frozen(hidden), frozen(hidden), frozen(1, hidden)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of *tokens*, [sequences, length].

        Gradients go back to the embedding's rows, as `enable_input_require_grads` has them under recomputation.
        """
        block = f.embedding(tokens.flatten(), self.embedding).requires_grad_()
        stream = block
        for layer in self.layers:
            stream = layer(stream, block, tokens.shape[1])
        last = rms_norm(residual_mix(block, stream, self.mix_norm, self.mix), self.norm)
        return logit_loss(self.head(last), labels.flatten())
