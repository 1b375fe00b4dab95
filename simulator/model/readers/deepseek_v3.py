"""DeepSeek-V3 and V3.2, Kimi-K2, GLM-5: latent attention, leading dense layers, then experts beside shared ones."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture, FeedForward, MixtureOfExperts
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")


def read(fields: Fields) -> Architecture:
    """The text model; a family with a vision tower passes its text part here."""
    count = common.layer_count(fields)
    parts = list(zip(attention.latent_attention_layers(fields, count), _feed_forwards(fields, count), strict=True))
    modules = fields.count("num_nextn_predict_layers", 0, limit=100)
    return replace(common.decoder(fields, parts), mtp_layers=modules)


def _feed_forwards(fields: Fields, count: int) -> list[FeedForward]:
    dense, mixture = feed_forward.dense_feed_forward(fields), _mixture(fields)
    return [mixture if chosen else dense for chosen in feed_forward.sparse_layers(fields, count)]


def _mixture(fields: Fields) -> MixtureOfExperts:
    mixture = feed_forward.mixture_of_experts(
        fields, "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok"
    )
    mixture = feed_forward.in_groups(fields, mixture, "n_group", "topk_group")
    shared = fields.count("n_shared_experts", 0)
    return replace(
        mixture,
        shared_experts=shared,
        shared_intermediate=shared * mixture.intermediate,
        router_bias=fields.text("topk_method", "noaux_tc") == "noaux_tc",
        router_dtype=common.router_dtype(fields),
    )
