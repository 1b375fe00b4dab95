"""Fields of a `config.json` that cannot matter to what a model costs: ids, sampling, initialisation, bookkeeping.

They are spelt alike in every family. A field that matters in some family does not belong here.
"""

from __future__ import annotations

_IDENTITY = {
    "_name_or_path",
    "_source",
    "architectures",
    "auto_map",
    "model_type",
    "name_or_path",
    "tokenizer_class",
    "transformers_version",
}
_TOKENS = {
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "ignore_index",
    "image_placeholder",
    "image_token_id",
    "image_token_index",
    "media_placeholder_token_id",
    "pad_token_id",
    "sep_token_id",
    "suppress_tokens",
    "video_placeholder",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
}
_GENERATION = {
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_logits_to_keep",
    "num_return_sequences",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "use_cache",
}
_TASK = {
    "finetuning_task",
    "id2label",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "return_dict",
    "return_dict_in_generate",
    "task_specific_params",
    "tf_legacy_loss",
    "torchscript",
}
_DEFAULTS_OF_EVERY_CONFIG = {
    "add_cross_attention",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "is_decoder",
    "is_encoder_decoder",
    "pruned_heads",
    "tie_encoder_decoder",
    "use_bfloat16",
}
_TRAINING = {
    "attention_dropout",
    "aux_loss_alpha",
    "dropout",
    "ep_size",
    "hidden_dropout",
    "initializer_range",
    "pretraining_tp",
    "rescale_prenorm_residual",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
}
_ARITHMETIC_OF_EQUAL_COST = {
    "_attn_implementation",
    "initial_context_length",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "final_logit_softcapping",
    "moe_renormalize",
    "moe_router_scaling_factor",
    "moe_router_activation_func",
    "norm_eps",
    "norm_topk_prob",
    "rms_norm_eps",
    "rope_interleave",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "routed_scaling_factor",
    "scoring_func",
    "swiglu_alpha",
    "swiglu_limit",
    "topk_method",
}

HARMLESS = frozenset().union(
    _IDENTITY, _TOKENS, _GENERATION, _TASK, _DEFAULTS_OF_EVERY_CONFIG, _TRAINING, _ARITHMETIC_OF_EQUAL_COST
)
"""Names that a reader may leave unread without saying so."""
