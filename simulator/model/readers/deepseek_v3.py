"""DeepSeek-V3 and V3.2, Kimi-K2, GLM-5: latent attention, leading dense layers, then experts beside shared ones."""

from __future__ import annotations

from dataclasses import replace

from simulator.model import idioms
from simulator.model.architecture import Architecture, FeedForward, Indexer, LatentAttention, MixtureOfExperts
from simulator.model.fields import Fields

MODEL_TYPES = ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")


def read(fields: Fields) -> Architecture:
    """The text model; a family with a vision tower passes its text part here."""
    count = idioms.layer_count(fields)
    parts = list(zip(_mixers(fields, count), _feed_forwards(fields, count), strict=True))
    modules = fields.count("num_nextn_predict_layers", 0, limit=100)
    return replace(idioms.decoder(fields, parts), mtp_layers=modules)


def _mixers(fields: Fields, count: int) -> list[LatentAttention]:
    """Latent attention in every layer, with an indexer where the index_ fields stand (DeepSeek-V3.2, GLM-5)."""
    attention = idioms.latent_attention(fields)
    if "index_n_heads" not in fields:
        return [attention] * count
    indexer = Indexer(fields.size("index_n_heads"), fields.size("index_head_dim"), fields.size("index_topk"))
    kinds = _indexer_kinds(fields, count)
    return [replace(attention, indexer=replace(indexer, shared=kind == "shared")) for kind in kinds]


def _indexer_kinds(fields: Fields, count: int) -> list[str]:
    """Full or shared for each layer (GLM-5.2 runs the indexer in every fourth); full where the file is silent."""
    fields.ignore(
        "indexer_rope_interleave", "index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration"
    )
    return idioms.layer_list(fields, "indexer_types", ["full"] * count, ("full", "shared"))


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    dense, mixture = idioms.dense_feed_forward(fields), _mixture(fields)
    leading, every = fields.count("first_k_dense_replace", 0), fields.size("moe_layer_freq", 1)
    by_rule = ["sparse" if i >= leading and i % every == 0 else "dense" for i in range(count)]
    kinds = idioms.layer_list(fields, "mlp_layer_types", by_rule, ("dense", "sparse"))
    return [mixture if kind == "sparse" else dense for kind in kinds]


def _mixture(fields: Fields) -> MixtureOfExperts:
    mixture = idioms.mixture_of_experts(fields, "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok")
    idioms.note_grouped_routing(fields, "n_group", "topk_group")
    shared = fields.count("n_shared_experts", 0)
    return replace(
        mixture,
        shared_experts=shared,
        shared_intermediate=shared * mixture.intermediate,
        router_bias=fields.text("topk_method", "noaux_tc") == "noaux_tc",
        router_dtype=idioms.router_dtype(fields),
    )
