"""What one rank holds of a layer to serve it: weights in their formats, and the cache of its sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from simulator.model.architecture import Architecture, GroupedAttention, LatentAttention, Layer, Mixer
from simulator.model.cache import BF16_BYTES, FP32_BYTES
from simulator.model.float8 import takes_part
from simulator.model.parameter import Parameter
from simulator.model.parameters import layer_parameters, mixer_cache
from simulator.model.serving.formats import CacheFormat, Formats
from simulator.model.split import share

_LATENT_SCALES = 4
"""fp32 scales beside the fp8 elements of a latent that sparse attention reads; its rotated part stays in bf16
(deepseek-ai/FlashMLA README, "FP8 KV cache": 512 + 16 + 128 bytes)."""
_BYTES = {"bf16": BF16_BYTES, "fp32": FP32_BYTES}


def held_layer(layer: Layer, tp: int, etp: int) -> Layer:
    """*layer* as one of *tp* ranks holds it that split heads and widths, and of *etp* that split routed experts."""
    mixer, feed_forward = layer.mixer, layer.feed_forward
    return replace(layer, mixer=mixer and share(mixer, tp), feed_forward=feed_forward and share(feed_forward, tp, etp))


def weight_bytes(architecture: Architecture, held: Layer, formats: Formats, slots: int) -> dict[str, float]:
    """Bytes of one rank's weights of a *held* layer by kind; the rank has *slots* slots for routed experts.

    "absorbed weights" are kv_b once more: engines keep a bf16 copy of its two halves, laid out for the products that
    take the latents' place around a core (vLLM `W_UK_T` and `W_UV`, SGLang `w_kc` and `w_vc`).
    """
    found = {"weights": 0.0, "experts": 0.0, "absorbed weights": 0.0}
    for parameter in layer_parameters(architecture, held):
        kind = "experts" if parameter.role == "routed_expert" else "weights"
        found[kind] += _stored_bytes(parameter, formats, slots)
    if isinstance(held.mixer, LatentAttention):
        found["absorbed weights"] = float(BF16_BYTES * _absorbed(held.mixer))
    return found


def _absorbed(mixer: LatentAttention) -> int:
    return mixer.kv_lora_rank * mixer.heads * (mixer.nope_dim + mixer.v_dim)


def _stored_bytes(parameter: Parameter, formats: Formats, slots: int) -> float:
    if parameter.role == "routed_expert":
        _, *one = parameter.shape
        into, out = (one[0], one[1]) if len(one) > 1 else (0, 0)
        return slots * (formats.experts.weight_bytes(out, into) if into else float(BF16_BYTES * prod(one)))
    if takes_part(parameter):
        return formats.dense.weight_bytes(*parameter.shape)
    return float(parameter.elements * _BYTES[parameter.dtype])


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """Cache memory of one sequence on one rank, for some layers."""

    token_bytes: float = 0.0
    """Of each token, for good: keys, values, latents, indexer keys."""
    sequence_bytes: float = 0.0
    """Of each sequence, whatever its length: recurrent and convolution states."""
    windows: tuple[tuple[int, float], ...] = ()
    """(window in tokens, bytes of a token) of layers that forget what lies before it."""

    def __add__(self, other: CacheNeed) -> CacheNeed:
        bytes_of = dict(self.windows)
        for window, size in other.windows:
            bytes_of[window] = bytes_of.get(window, 0.0) + size
        return CacheNeed(
            self.token_bytes + other.token_bytes,
            self.sequence_bytes + other.sequence_bytes,
            tuple(sorted(bytes_of.items())),
        )

    def bytes_of(self, tokens: int) -> float:
        """Of a sequence of *tokens* tokens."""
        grown = self.token_bytes * tokens + sum(size * min(tokens, window) for window, size in self.windows)
        return self.sequence_bytes + grown


def cache_need(mixer: Mixer, cache: CacheFormat) -> CacheNeed:
    """Of one layer whose *mixer* is as the rank holds it."""
    if isinstance(mixer, GroupedAttention):
        token = 2 * mixer.kv_heads * mixer.head_dim * (BF16_BYTES if cache == "bf16" else 1)
        window = mixer.window or mixer.chunk
        return CacheNeed(windows=((window, float(token)),)) if window else CacheNeed(token_bytes=float(token))
    plain = mixer_cache(mixer)
    kv = plain.kv_bytes_per_token
    if isinstance(mixer, LatentAttention) and cache == "fp8":
        kv = _latent_fp8_bytes(mixer)
    return CacheNeed(kv + plain.index_bytes_per_token, plain.bytes_per_sequence)


def _latent_fp8_bytes(mixer: LatentAttention) -> float:
    """Of one token: all of it in fp8, or as sparse attention reads it."""
    if mixer.indexer is None:
        return float(mixer.kv_lora_rank + mixer.rope_dim)
    return float(mixer.kv_lora_rank + _LATENT_SCALES * FP32_BYTES + BF16_BYTES * mixer.rope_dim)


def served_problems(architecture: Architecture, cache: CacheFormat) -> list[str]:
    """What of *architecture* is not simulated while serving, a sentence each."""
    kinds = {layer.mixer.kind for layer in architecture.layers if layer.mixer is not None}
    found = [
        f"{kind.replace('_', ' ')} is not simulated with a cache; served are grouped and latent attention, Kimi delta "
        "attention, gated delta nets and Mamba-2"
        for kind in sorted(kinds & {"compressed_attention", "block_sparse_attention"})
    ]
    if cache == "fp8" and not kinds & {"grouped_attention", "latent_attention"}:
        found.append(f"{architecture.model_type} keeps no keys and values that could be fp8")
    return found
