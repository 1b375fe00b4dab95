"""gpt-oss: attention with sinks and biases, in every second layer windowed; experts with biases."""

from __future__ import annotations

from dataclasses import replace

from simulator.model.architecture import Architecture
from simulator.model.fields import Fields
from simulator.model.idioms import attention, common, feed_forward

MODEL_TYPES = ("gpt_oss",)


def read(fields: Fields) -> Architecture:
    """The router is a linear layer with a bias; its bias stands where other families have their correction bias."""
    count = common.layer_count(fields)
    full = replace(attention.grouped_attention(fields), sinks=True)
    windowed = replace(full, window=fields.size("sliding_window"))
    by_rule = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    kinds = common.layer_list(fields, "layer_types", by_rule, ("sliding_attention", "full_attention"))
    mixture = replace(
        feed_forward.mixture_of_experts(fields, "num_local_experts", "intermediate_size", "num_experts_per_tok"),
        activation="swigluoai",
        bias=True,
        router_bias=True,
    )
    fields.ignore("experts_per_token")
    return common.decoder(fields, [(full if kind == "full_attention" else windowed, mixture) for kind in kinds])
