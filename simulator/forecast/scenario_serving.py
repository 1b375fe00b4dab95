"""The part of the scenario that says what is served, to whom, and how: `serving`, in the place of `training`.

Weights and key-value caches lie on the accelerators and requests come and go; nothing is trained. Words are vLLM's and
SGLang's where they have one. Parallel degrees keep the names that they have in training.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.forecast.scenario import Described
from simulator.forecast.scenario_front_end import FrontEnd
from simulator.forecast.scenario_serving_offload import ServingOffload
from simulator.forecast.scenario_sharding import Degree
from simulator.forecast.section import Section

Format = Literal["bf16", "fp8", "int8", "int4", "int4_group32", "mxfp4", "nvfp4"]
Exchange = Literal["all_to_all", "deduplicated", "hierarchical", "low_latency"]
_REFUSED = {
    "dp_shard": "weights that are served are not sharded over data-parallel ranks and gathered; allowed: dp_replicate",
    "cp": "prompts and caches that ranks share along the sequence are not simulated; leave it out",
    "virtual_pipeline": "stages of a served model have one chunk; leave it out",
    "stage_layers": "layers are shared evenly among the stages; leave it out",
}


class ServingParallel(Section):
    """How the model is split. dp_replicate x tp x pp = accelerators."""

    dp_replicate: Degree = Field(
        1,
        description=(
            "Data-parallel ranks of attention, each with requests of its own. Those that share experts go in step; "
            "groups of ep x etp that share none are engines of their own."
        ),
    )
    tp: Degree = Field(1, description="Tensor parallel degree of all but the experts.")
    pp: Degree = Field(1, description="Pipeline stages.")
    ep: Degree = Field(1, description="Expert parallel degree. ep x etp divides dp_replicate x tp, and tp divides it.")
    etp: Degree = Field(1, description="Tensor parallel degree inside an expert; 1 where ep x etp is more than tp.")

    @model_validator(mode="before")
    @classmethod
    def _reasons(cls, found: Any) -> Any:
        """What only training has is refused with the reason."""
        if isinstance(found, dict) and (named := [key for key in found if key in _REFUSED]):
            raise ValueError("\n".join(f"{key}: {_REFUSED[key]}" for key in named))
        return found


class Requests(Section):
    """Who asks for what: requests of given lengths, so many at once or at a rate; or a trace of real ones."""

    prompt_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = Field(None, description="Tokens of a prompt.")
    output_tokens: Annotated[int, Field(ge=1, le=16_777_216)] | None = Field(
        None, description="Tokens of an answer; 1: prefill alone."
    )
    least_share: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description=(
            "Shortest prompt and answer as a share of the longest; lengths are drawn evenly in between "
            "(random_range_ratio of benchmarks)."
        ),
    )
    concurrency: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="Requests under way at once: as one ends, the next comes."
    )
    rate_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="Requests that come in a second, at random times (Poisson)."
    )
    trace: str | None = Field(
        None,
        description=(
            "Recorded requests, a file of scenarios/requests, by name or path: CSV as the Azure LLM inference traces "
            "(TIMESTAMP, ContextTokens, GeneratedTokens) or JSONL as Mooncake's (timestamp in ms, input_length, "
            "output_length, hash_ids)."
        ),
    )
    count: Annotated[int, Field(ge=1, le=100_000_000)] | None = Field(
        None,
        description="Requests simulated; absent: ten for each of concurrency, 1 000 at a rate, or all of the trace.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Decides lengths and times that are drawn.")
    cached_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of each prompt whose keys and values are there already (prefix cache)."
    )
    prefilled: bool = Field(
        False, description="Prompts come with their cache, made elsewhere: the accelerators decode alone."
    )


class PrefillPool(Section):
    """Accelerators beside the decoding ones that do nothing but prefill, and hand caches over through the fabric."""

    accelerators: Degree = Field(description="Of the cluster's, those that prefill; the others decode.")
    parallel: ServingParallel = ServingParallel()
    max_batch_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = Field(
        16_384, description="Tokens of prompts in an iteration, on each data-parallel rank."
    )


class BatchWait(Section):
    """How long prompts wait for others, so that fewer iterations have prompts (TensorRT-LLM's batch_wait)."""

    iterations: Annotated[int, Field(ge=1, le=10_000)] = Field(
        description="That decode meanwhile, at most (batch_wait_timeout_iters)."
    )
    tokens_share: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description=(
            "Of max_batch_tokens: as many tokens of prompts and of sequences that decode end the waiting "
            "(batch_wait_max_tokens_ratio)."
        ),
    )


class Serving(Section):
    """What is served, and how."""

    weights: Format = Field(
        "bf16",
        description=(
            "Format of linear layers' weights. fp8: scales for blocks of 128 x 128; int8: for each output; int4: for "
            "128 weights, in bf16 (AWQ), int4_group32: for 32 (Kimi K2 Thinking), both multiplied in bf16, as mxfp4 "
            "is; nvfp4 where the accelerator has it, else in bf16. Embedding, output layer, norms and routers are bf16."
        ),
    )
    experts: Format | None = Field(None, description="Format of routed experts' weights; absent: as the others.")
    kv_cache: Literal["bf16", "fp8"] = Field("bf16", description="Format of cached keys and values.")
    block_tokens: Annotated[int, Field(ge=1, le=65_536)] = Field(16, description="Tokens of a block of the cache.")
    requests: Requests
    max_sequences: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        256, description="Sequences in an iteration at most, on each data-parallel rank."
    )
    max_batch_tokens: Annotated[int, Field(ge=1, le=16_777_216)] = Field(
        8192,
        description="Tokens in an iteration at most, on each data-parallel rank; longer prompts go in chunks.",
    )
    batching: Literal["mixed", "prefill_first"] = Field(
        "mixed",
        description=(
            "mixed: chunks of prompts beside decoding sequences in what these leave of max_batch_tokens (vLLM V1); "
            "prefill_first: iterations of prompts alone as long as any wait, then of decoding ones (SGLang)."
        ),
    )
    receive_every: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1,
        description=(
            "Iterations of decoding from one look at new requests to the next; after prompts the engine looks at once "
            "(SGLang's scheduler_recv_interval)."
        ),
    )
    admission: Literal["prompt", "answer"] = Field(
        "prompt",
        description=(
            "What must be free for a sequence to be taken in. prompt: blocks for its prompt, and when decoding finds "
            "none the last one in goes back and computes its cache again (vLLM, SGLang); answer: for its answer as "
            "well (TensorRT-LLM's guaranteed_no_evict)."
        ),
    )
    chunked_prefill: bool = Field(
        True,
        description=(
            "Prompts are cut where an iteration has no room for more; false: a prompt waits for one that has room for "
            "all of it (TensorRT-LLM unless told otherwise)."
        ),
    )
    batch_wait: BatchWait | None = Field(None, description="Present: prompts wait for others while sequences decode.")
    prefill_code: Literal["compiled", "fused"] = Field(
        "compiled",
        description=(
            "What launches the kernels of iterations with prompts. compiled: code of torch.compile (vLLM); fused: "
            "Python, kernels fused by hand one after the other (SGLang, TensorRT-LLM without torch_compile_config)."
        ),
    )
    front_end: FrontEnd = FrontEnd()
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of the accelerator's memory that weights, activations and caches may take."
    )
    prefix_cache: bool = Field(
        False, description="Blocks of prompts are kept while there is room, and found by the trace's hash_ids."
    )
    prefill: PrefillPool | None = Field(None, description="Present: prefill is done apart from decoding.")
    offload: ServingOffload = ServingOffload()
    cuda_graphs: bool = Field(True, description="Iterations that only decode are captured, and replayed in one launch.")
    exchange: Exchange = Field("low_latency", description="How rows find their experts in iterations that only decode.")
    prefill_exchange: Exchange = Field(
        "hierarchical", description="How they do where prompts are among them. Words as in training.exchange."
    )
    two_batch_overlap: bool = Field(
        False, description="Iterations go as two halves, exchanges of one beside the computation of the other."
    )


class ServingMeasured(Section):
    """What a real deployment showed: makes it a case of `rackcast validate`."""

    ttft_s: Annotated[float, Field(gt=0)] | None = Field(None, description="Mean time to the first token.")
    ttft_p50_s: Annotated[float, Field(gt=0)] | None = Field(None, description="Median time to the first token.")
    tpot_s: Annotated[float, Field(gt=0)] | None = Field(None, description="Mean time of each further token.")
    latency_s: Annotated[float, Field(gt=0)] | None = Field(None, description="Mean time of a whole request.")
    output_tokens_per_s_per_accelerator: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Tokens of answers."
    )
    prompt_tokens_per_s_per_accelerator: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Tokens of prompts."
    )
    source: Annotated[str, Field(min_length=1, description="Who measured it, with what.")]


class ServingScenario(Described):
    """One model served on one cluster."""

    parallel: ServingParallel = ServingParallel()
    serving: Serving
    measured: ServingMeasured | None = Field(None, description="A measurement to compare the forecast with.")
