"""Architecture: a model as layers of mixers and feed-forward parts, free of any one family's spelling.

Readers fill it from a `config.json`; `parameters` and `operators` read it. Dims are element counts. A mixer's or a
feed-forward part's `kind` names the files that list its parameters (`model/parameters/<kind>.py`) and its operators
(`model/operators/<kind>.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of sparse attention: scores every key and keeps the best *top_k* for each query."""

    heads: int
    head_dim: int
    top_k: int
    rope: bool = True
    shared: bool = False
    """True where the layer has no indexer of its own and takes the choice of an earlier layer."""


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Softmax attention with *kv_heads* key-value heads (multi-head when equal to *heads*, multi-query when 1)."""

    kind: ClassVar[str] = "grouped_attention"
    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: Literal["none", "head", "layer"] = "none"
    """An RMSNorm on q and k, over one head's dim or over all heads at once."""
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    """q_proj yields a gate of the output's size too (Qwen3-Next style)."""
    window: int | None = None
    """Sliding window in tokens."""
    chunk: int | None = None
    """Attention within chunks of this many tokens (Llama-4)."""
    rotary_dim: int | None = None
    """Dims of a head that are rotated; None: all of them; 0: none."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek's MLA)."""

    kind: ClassVar[str] = "latent_attention"
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    rope: bool = True
    """False where the rope dims exist but are not rotated (Kimi)."""
    output_gate: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention:
    """Kimi Delta Attention: a chunked gated delta rule with per-channel decay."""

    kind: ClassVar[str] = "kimi_delta_attention"
    heads: int
    head_dim: int
    conv_kernel: int
    full_rank_gate: bool = False
    """The output gate is one full matrix (K3) instead of two thin ones (Kimi-Linear)."""
    decay_rank: int = 128
    """Inner dim of the two thin matrices that make the decay."""
    decay_parameters: int = 128
    """Elements of A_log as the checkpoint stores it."""


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated delta net with a scalar decay per head (Qwen3-Next, Qwen3.5)."""

    kind: ClassVar[str] = "gated_delta_net"
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv_kernel: int


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 state-space mixer."""

    kind: ClassVar[str] = "mamba2"
    heads: int
    head_dim: int
    groups: int
    state: int
    conv_kernel: int
    conv_bias: bool = True
    chunk: int = 128


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Multi-query attention over compressed keys (DeepSeek-V4): one shared key-value head, grouped low-rank output."""

    kind: ClassVar[str] = "compressed_attention"
    heads: int
    head_dim: int
    q_lora_rank: int
    rope_dim: int
    output_groups: int
    output_rank: int
    window: int
    compress_ratio: int
    """Tokens per compressed key; 0: this layer has the sliding window only."""
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class BlockSparseAttention:
    """Grouped attention whose queries read the best-scored blocks of keys only (MiniMax-M3)."""

    kind: ClassVar[str] = "block_sparse_attention"
    attention: GroupedAttention
    block: int
    top_blocks: int
    index_heads: int
    index_dim: int


Mixer = (
    GroupedAttention
    | LatentAttention
    | KimiDeltaAttention
    | GatedDeltaNet
    | Mamba2
    | CompressedAttention
    | BlockSparseAttention
)


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """A dense feed-forward part: gated (three matrices) or plain (two)."""

    kind: ClassVar[str] = "dense_feed_forward"
    intermediate: int
    activation: str = "silu"
    """silu, gelu, situ, relu2, swigluoai."""
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """Routed experts, of which each token visits *top_k*, beside shared ones that every token visits."""

    kind: ClassVar[str] = "mixture_of_experts"
    experts: int
    top_k: int
    intermediate: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    """Biases on the experts' matrices (gpt-oss)."""
    latent: int | None = None
    """Width in which experts work, when it is not the model's (latent MoE): projections stand around them."""
    latent_norm: bool = False
    shared_experts: int = 0
    shared_intermediate: int = 0
    """Intermediate width of all shared experts together."""
    shared_gate: bool = False
    """A 1-wide sigmoid gate on the shared experts' output (Qwen)."""
    router_bias: bool = False
    zero_experts: int = 0
    """Experts that return their input and hold no weights (LongCat)."""
    groups: int = 1
    """Groups of neighbouring experts ..."""
    best_groups: int = 1
    """... of which a token's experts are in so many at most (DeepSeek-V3: within so many nodes)."""
    router_dtype: str = "bf16"


FeedForward = DenseFeedForward | MixtureOfExperts


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a mixer, a feed-forward part, or both, each behind its norm and residual."""

    index: int
    mixer: Mixer | None
    feed_forward: FeedForward | None
    residual_blocks: int = 0
    """Blocks of earlier residuals that each sub-layer mixes in (AttnRes); 0 where the model has plain residuals."""
    hyper_connections: int = 1
    """Parallel residual streams (DeepSeek-V4's mHC); 1: an ordinary residual."""
    extra_norms: int = 0
    """Hidden-width norms beside the one before each sub-layer."""


@dataclass(frozen=True, slots=True)
class VisionTower:
    """A vision transformer and the projector into the language model."""

    layers: int
    hidden: int
    qkv_hidden: int
    heads: int
    intermediate: int
    patch: int
    temporal_patch: int = 1
    merge: int = 2
    """Side of the square of patches that become one language token."""
    output: int = 0
    """Width of the language model."""
    position_parameters: int = 0
    bias: bool = True
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    patch_bias: bool = True
    projector: str = "patchmerger"
    projector_hidden: int = 0
    deepstack_layers: tuple[int, ...] = ()
    final_norm: bool = True


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model, as far as its `config.json` tells it."""

    model_type: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool = False
    norm_bias: bool = False
    """Whether the norms around the parts are LayerNorms, with a bias; False: RMSNorms."""
    learnt_positions: int = 0
    """Rows of a learnt table of positions, added to the embedding; 0: none."""
    attn_res_block: int = 0
    """Layers per block of residuals (AttnRes); 0: none."""
    vision: VisionTower | None = None
    mtp_layers: int = 0
    """Multi-token-prediction modules that the checkpoint holds; in a job, those that are trained."""
    mtp_module: tuple[Layer, ...] = ()
    """Layers of one such module, where they are not a copy of the model's last layer."""
    max_positions: int = 0
    dtype: str = "bf16"
    approximations: tuple[str, ...] = field(default=())
    """What is read only approximately, one sentence each."""
    unknown_fields: tuple[str, ...] = field(default=())
    """Fields of the file that nobody understood and that may matter."""

    def moe_layers(self) -> Iterator[Layer]:
        """The layers that have routed experts, those of multi-token-prediction modules last."""
        every = (*self.layers, *(layer for module in self.mtp_modules() for layer in module))
        return (layer for layer in every if isinstance(layer.feed_forward, MixtureOfExperts))

    def mtp_template(self) -> tuple[Layer, ...]:
        """The layers of one multi-token-prediction module."""
        return self.mtp_module or self.layers[-1:]

    def mtp_modules(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each such module, numbered on from the model's own."""
        number = count(len(self.layers))
        modules = (self.mtp_template() for _ in range(self.mtp_layers))
        return tuple(tuple(replace(layer, index=next(number)) for layer in module) for module in modules)
