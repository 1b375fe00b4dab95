"""The scenario: one job on one cluster, as a user writes it down.

This pydantic model is the only schema: the YAML reader, the JSON Schema for editors and the documentation tables come
from it. Every field changes the forecast; what is not simulated yet is refused with a message, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.forecast.scenario_memory import Offload, Swap
from simulator.forecast.scenario_routing import Routing
from simulator.forecast.scenario_sharding import Ddp, DeepSpeed, Degree, Fsdp, Megatron
from simulator.forecast.section import Section
from simulator.units import Bytes, BytesPerSecond, Seconds


class Degraded(Section):
    """What is broken or slow. Everyone waits for the slowest link, the slowest node, the node with fewest ports."""

    links: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        {},
        description="By level (scale_up, super_node, a tier), the share of its rate that its slowest link has.",
        examples=[{"leaf": 0.5}],
    )
    dead_rails: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="Ports that one node has lost; its others carry their traffic."
    )
    slow_nodes: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(gt=0, le=1)]] = Field(
        {},
        description=(
            "By number of the node, from 0, the share of their pace at which its accelerators compute, when they are "
            "throttled say. Ranks fill nodes in order."
        ),
        examples=[{3: 0.8}],
    )


class Cluster(Section):
    """The machines."""

    node: str = Field(
        description="Node type: a file of hardware_profiles/nodes, by name or path.", examples=["hgx-h200"]
    )
    fabric: str = Field(
        description="Scale-out fabric: a file of hardware_profiles/fabrics.", examples=["rail-fat-tree-400g"]
    )
    accelerators: Degree = Field(description="Accelerators in use.")
    segment_nodes: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description=(
            "Nodes in a row that lie in one scale-up domain, a rack of 72 say, as workload managers place them (Slurm: "
            "--segment). Absent: the largest part of a domain, from half of it on, that shares the accelerators out "
            "evenly, as 64 of each 72 do for 256."
        ),
    )
    degraded: Degraded | None = Field(None, description="Present: something of it is broken or slow.")
    memory_nodes: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0,
        description=(
            "Nodes of the super-node beside those in use that lend their host memory: cards load and store over the "
            "scale-up links, and activations that are offloaded or swapped spread over it."
        ),
    )
    gpu_direct: bool = Field(
        True,
        description=(
            "Ports reach the accelerators' memory (GPUDirect RDMA). False: what leaves a node goes through its host's."
        ),
    )


class Described(Section):
    """What scenarios of training and of serving have in common: a model on a cluster."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120, description="Names the results.")
    ]
    description: str = Field("", description="For people.")
    model: str = Field(description="A config.json, by path or by the name of a shipped one.", examples=["kimi-k3.1"])
    cluster: Cluster
    routing: Routing = Routing()
    usd_per_accelerator_hour: Annotated[float, Field(ge=0, le=1e6)] | None = Field(
        None, description="Price; absent: the dated list price of hardware_profiles/prices.yaml, if there is one."
    )


class Parallel(Section):
    """How the job is split; the names are torchtitan's. dp_replicate x dp_shard x tp x cp x pp = accelerators."""

    dp_replicate: Degree = Field(
        1, description="Replicas of the sharded model (HSDP): gradients all-reduced between them."
    )
    dp_shard: Degree = Field(1, description="FSDP2 degree of parameters outside the experts.")
    tp: Degree = Field(1, description="Tensor parallel degree.")
    cp: Degree = Field(1, description="Context parallel degree.")
    pp: Degree = Field(1, description="Pipeline stages.")
    virtual_pipeline: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="Virtual stages of each pipeline stage, which 1f1b goes through in turn (interleaved)."
    )
    stage_layers: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] | None = Field(
        None, min_length=1, description="Layers of each virtual stage; absent: as even as can be, the first one more."
    )
    ep: Degree = Field(1, description="Expert parallel degree, borrowed from dp_shard x cp x tp.")
    etp: Degree = Field(1, description="Tensor parallel degree inside an expert.")


class Lora(Section):
    """Low-rank adapters beside frozen weights."""

    rank: Annotated[int, Field(ge=1, le=4096)] = Field(8, description="Inner dim of the adapters.")
    targets: tuple[Literal["attention", "mlp", "shared_expert", "latent", "routed_expert"], ...] = Field(
        ("attention",), min_length=1, description="Roles of the linear layers that carry an adapter."
    )


class Optimizer(Section):
    """The optimizer and the number format of its states."""

    name: Literal["adamw", "adamw_8bit", "muon", "sgd"] = Field(
        "adamw",
        description=(
            "AdamW; with moments of one byte and scales a block; Muon on hidden matrices and AdamW elsewhere; SGD "
            "without momentum."
        ),
    )
    state_dtype: Literal["fp32", "bf16"] = Field("fp32", description="Format of AdamW's moments and Muon's momentum.")
    master_weights: bool = Field(True, description="Keep trained parameters in fp32 (sharded) and gather them in bf16.")
    implementation: Literal["fused", "foreach"] = Field(
        "fused", description="AdamW in one kernel, or in one per arithmetic step with a temporary beside all of it."
    )


class Float8(Section):
    """Matmuls of linear layers in fp8 beside bf16 weights, as torchao (eager, compiled) or Transformer Engine (fused)
    run them.
    """

    recipe: Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"] = Field(
        "tensorwise",
        description=(
            "Scales: a tensor's, of earlier steps (delayed) or its own (tensorwise); a row's; a block's of 128 values "
            "(DeepSeek-V3); of 32 values (mxfp8)."
        ),
    )
    dense: bool = Field(True, description="Linear layers outside the routed experts in fp8; routers are not.")
    experts: bool = Field(False, description="Grouped matmuls of routed experts in fp8.")
    all_gather: bool = Field(False, description="Parameters of linear layers are gathered in fp8: half the bytes.")
    scales: Literal["one_by_one", "together", "as_cast"] | None = Field(
        None,
        description=(
            "How mxfp8's scales come to the order of tensor cores in Transformer Engine. one_by_one: a kernel for each "
            "operand of each matmul, and zeros before (until 2.6); together (absent): a kernel for all experts; "
            "as_cast: casts write them so (2026)."
        ),
    )
    dispatch: bool = Field(False, description="Rows travel to experts in fp8, gradients of their results, too.")
    stored: tuple[Literal["moe_act", "core_attn"], ...] = Field(
        (),
        description=(
            "Kept in fewer bits between the passes (DeepSeek-V3). moe_act: what the experts' activations read, in 8; "
            "core_attn: what attention returns, in 12, once for it and the product behind it."
        ),
    )


class SyntheticImages(Section):
    """Seeded numbers of images: they follow a log-normal law, rounded, and no more than the sequence has room for."""

    mean: Annotated[float, Field(gt=0, le=1e6)] = Field(description="Images of a sequence in the mean.")
    sigma: Annotated[float, Field(ge=0, le=5)] = Field(description="Spread of log numbers; 0: all alike.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Decides the numbers.")


class Images(Section):
    """Images of one size in the sequences, whose tokens take places in them; they go through the vision tower first."""

    height: Annotated[int, Field(ge=1, le=100_000)] = Field(description="Pixels, as the tower gets them.")
    width: Annotated[int, Field(ge=1, le=100_000)] = Field(description="Pixels, as the tower gets them.")
    per_sequence: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None, min_length=1, description="Images of the sequences of a micro-batch, rank after rank, in turn."
    )
    synthetic: SyntheticImages | None = None
    even: bool = Field(
        False, description="Spread all images over the ranks as evenly as they divide, as a balancing sampler does."
    )
    frozen: tuple[Literal["tower", "projector"], ...] = Field((), description="Parts whose weights are not trained.")


class Sequences(Section):
    """Sequences told apart, so that micro-batches and ranks are unlike; those of eight micro-batches recur in turn."""

    lengths: tuple[Annotated[int, Field(ge=1, le=16_777_216)], ...] | None = Field(
        None,
        min_length=1,
        description="Tokens of the sequences, rank after rank, in turn, unpadded; absent: sequence_length each.",
    )
    domains: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Domains that sequences are drawn from, each of which routes to experts in its own way."
    )
    spread: Annotated[float, Field(gt=0, le=5)] = Field(
        0.93,
        description="Standard deviation of an expert's log popularity between domains (0.93 between six of OLMoE).",
    )


class Recompute(Section):
    """Selective recomputation: one of three ways, whose words are torchtitan's and Megatron-LM's."""

    every: Annotated[int, Field(ge=2, le=10_000)] | None = Field(
        None, description="Recompute every n-th layer of a virtual stage as a whole, and keep all of the others."
    )
    keep: Literal["alternate_matmuls", "matmuls"] | None = Field(
        None,
        description=(
            "Recompute all of each layer but attention, expert exchanges, scatters, and every other matmul or all, "
            "whose results are kept."
        ),
    )
    modules: tuple[Literal["core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts"], ...] = (
        Field((), description="Recompute these parts of each layer that has them, as Megatron-LM does.")
    )


class ChunkedLoss(Section):
    """A loss along the sequence."""

    chunk_tokens: Degree = Field(1024, description="Tokens whose logits are there at once.")


class Training(Section):
    """What one step does."""

    sequence_length: Annotated[int, Field(ge=1, le=16_777_216, description="Tokens of a sequence.")]
    document_length: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Tokens of the documents packed into a sequence, to which attention keeps; absent: one."
    )
    micro_batch_sequences: Degree = Field(1, description="Sequences a rank takes at once.")
    global_batch_sequences: Degree = Field(description="Sequences of one optimizer step over the whole job.")
    images: Images | None = Field(None, description="Absent: text alone.")
    sequences: Sequences | None = Field(None, description="Absent: all sequences are alike, and so all micro-batches.")
    lora: Lora | None = Field(None, description="Present: base weights are frozen. Absent: full fine-tuning.")
    multi_token_prediction: Annotated[int, Field(ge=0, le=100)] = Field(
        0, description="Multi-token-prediction modules trained with the model, on the last stage; up to those it has."
    )
    optimizer: Optimizer = Optimizer()
    zero: Literal[0, 1, 2, 3] = Field(
        3,
        description=(
            "What is sharded. 3: parameters, gradients and optimizer (FSDP2); 2: gradients and optimizer (DeepSpeed); "
            "1: the optimizer (Megatron-LM); 0: nothing (DDP)."
        ),
    )
    ddp: Ddp = Ddp()
    deepspeed: DeepSpeed = DeepSpeed()
    megatron: Megatron = Megatron()
    fsdp: Fsdp = Fsdp()
    pipeline_schedule: Literal["1f1b", "gpipe", "zb_h1", "dualpipe"] = Field(
        "1f1b",
        description=(
            "Order of passes in a pipeline. zb_h1: gradients of weights put off into the bubble; dualpipe: two copies "
            "of the model in opposite directions, forward beside backward passes."
        ),
    )
    recompute: Literal["none", "full"] | Recompute = Field(
        "none", description="full: keep each layer's input only and run it again; or a mapping, for a part of that."
    )
    offload: Offload = Offload()
    swap: Literal["auto"] | Swap | tuple[Swap, ...] = Field(
        Swap(),
        description=(
            "Of all layers; or a list, one for each pipeline stage, with shares of its own. auto, with recompute full: "
            "the results are chosen that save most and fit, stage by stage, by a solver."
        ),
    )
    loss: Literal["plain", "compiled", "chunked", "cut", "vocab_parallel"] | ChunkedLoss = Field(
        "plain",
        description=(
            "plain: all logits at once, as the execution has it; compiled: the same in one kernel; chunked: 1,024 "
            "tokens at a time, or as a mapping says; cut: along the vocabulary, fused; vocab_parallel: all at once in "
            "fp32, in place, kernel by kernel (Megatron-LM without cross_entropy_loss_fusion)."
        ),
    )
    execution: Literal["eager", "compiled", "fused"] = Field("fused", description="How operators run as kernels.")
    float8: Float8 | None = Field(
        None, description="Present: linear layers of the decoder multiply in fp8, as it says."
    )
    attention: Literal["flash", "flash2", "flash_triton", "unfused"] = Field(
        "flash",
        description=(
            "flash: one kernel, the best of the accelerator; flash2: FlashAttention-2 on a part that has faster ones; "
            "flash_triton: FlashAttention in Triton of 2022 (MPT); unfused: products and a softmax over scores in "
            "memory, as Megatron-LM."
        ),
    )
    core_kernels: Literal["fused", "partly_fused", "small_operators"] | None = Field(
        None,
        description=(
            "How Kimi delta attention and sparse latent attention run. fused: this project's kernels; partly_fused: "
            "published ones, with results in memory between them; small_operators: PyTorch's, one by one. Absent: "
            "fused with execution fused, partly_fused elsewhere."
        ),
    )
    context_parallel: Literal["all_gather", "all_to_all", "ring"] = Field(
        "all_gather",
        description=(
            "How cp ranks attend over whole sequences. all_gather: keys and values gathered; all_to_all: heads "
            "exchanged for sequence (Ulysses); ring: keys and values passed on beside the attention to those there."
        ),
    )
    exchange: Literal["all_to_all", "deduplicated", "hierarchical", "low_latency"] = Field(
        "all_to_all",
        description=(
            "How rows find their experts. all_to_all: each row by itself; deduplicated: a token once to each rank; "
            "hierarchical: once to each node, and over the links inside to its ranks (DeepEP); low_latency: each row "
            "by itself, written by the port into the memory of its expert's rank (DeepEP)."
        ),
    )
    exchange_parts: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description=(
            "Parts of the rows to experts, each sent, computed and brought home beside the others (Tutel's "
            "a2a_ffn_overlap_degree)."
        ),
    )
    overlap_exchanges: bool = Field(
        False,
        description=(
            "Exchanges among experts beside the other pass, a forward and a backward one of different micro-batches at "
            "a time (Megatron-LM's overlap_moe_expert_parallel_comm, DualPipe)."
        ),
    )
    delay_weight_gradients: bool = Field(
        False, description="With that: gradients of weights beside exchanges, too (delay_wgrad_compute)."
    )
    overlap_tensor_parallel: bool = Field(
        False,
        description=(
            "Gathers and scatters among tp ranks in parts beside the matmuls that they feed or empty. compiled: "
            "PyTorch's asynchronous tensor parallelism (torchtitan's enable_async_tensor_parallel); fused, zero 1: "
            "Transformer Engine's user buffers (Megatron-LM's tp_comm_overlap)."
        ),
    )
    sequence_parallel: bool = Field(
        True, description="With tp: norms and residuals on a share of the tokens; False: on all, with all-reduces."
    )
    grouped_gemm: Literal["grouped", "per_expert", "fused"] | None = Field(
        None,
        description=(
            "Matmuls of a rank's experts. grouped: one kernel; per_expert: one each, launched in a library's loop; "
            "fused: one kernel with the activation and the casts behind it (Transformer Engine's grouped MLP, mxfp8). "
            "Absent: per_expert with fused execution under zero 1 or Megatron-FSDP (Transformer Engine), else grouped."
        ),
    )
    dispatch_fusion: bool = Field(
        True,
        description=(
            "Rows of tokens that DeepEP brought are found in one kernel (Megatron-LM's enable_experimental). False: in "
            "some thirty of PyTorch's, and the host waits for the numbers of three."
        ),
    )
    router_fusion: bool = Field(
        False,
        description=(
            "Choice of experts and balancing loss in Transformer Engine's kernels (Megatron-LM's moe_router_fusion), "
            "with fused execution under zero 1 or Megatron-FSDP."
        ),
    )
    cuda_graphs: tuple[Literal["attn", "mlp", "moe_router", "moe_preprocess", "full_iteration"], ...] = Field(
        (),
        description=(
            "Parts of each layer that are captured and replayed in one launch (Megatron-LM's cuda_graph_scope). attn: "
            "the mixer and its norm; mlp: that of layers without routed experts; moe_router: norm, choice of experts "
            "and shared experts; moe_preprocess: rows put in the order of the exchange; full_iteration, alone: all "
            "passes of a step in one graph, where no host needs to know numbers of rows."
        ),
    )
    dropout: bool = Field(False, description="Dropout in attention, of the embedding and of sub-layers' results.")

    @property
    def megatron_fsdp(self) -> bool:
        """Whether parameters are sharded by Megatron-FSDP."""
        return self.zero == 3 and self.fsdp.implementation == "megatron"

    @property
    def megatron_sharding(self) -> bool:
        """Whether data parallelism is Megatron-LM's: its distributed optimizer, or Megatron-FSDP."""
        return self.fsdp.is_megatron(self.zero)

    @property
    def megatron_stack(self) -> bool:
        """Whether layers are Megatron-LM's on Transformer Engine."""
        return self.execution == "fused" and self.megatron_sharding


class Campaign(Section):
    """The whole training run, of which the step is one: tokens, checkpoints, failures, what it may take and cost."""

    tokens: Annotated[float, Field(gt=0, le=1e18)] = Field(description="Tokens to train on.")
    storage_bandwidth: BytesPerSecond = Field(description="What all nodes together write to, or read from, storage.")
    checkpoint: Literal["background", "blocking"] = Field(
        "background", description="Whether steps go on once a checkpoint is in host memory, or once it is stored."
    )
    checkpoint_interval: Seconds | None = Field(None, description="Work between checkpoints; absent: the best.")
    failures: str = Field("llama3-16k-h100", description="How often parts fail: a file of hardware_profiles/failures.")
    spare_nodes: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="Nodes held ready, beyond those in use, to take the place of broken ones."
    )
    survive_nodes: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0,
        description=(
            "`rackcast plan` recommends only splits that go on with so many nodes lost at once: spare nodes take their "
            "place, and where those are too few, the same batch goes to fewer data-parallel ranks, which have to fit."
        ),
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="Decides when failures come.")
    least_accelerators: Degree = Field(1, description="`rackcast plan` looks at clusters from this size on ...")
    most_accelerators: Degree | None = Field(
        None, description="... up to this one, for the cheapest that meets the goals; absent: at the size stated only."
    )
    within: Seconds | None = Field(None, description="Deadline, from the start, such as 4 d: met nine times in ten.")
    budget_usd: Annotated[float, Field(gt=0)] | None = Field(None, description="Most that it may cost, likewise.")


class Measured(Section):
    """What a real run of the scenario showed: makes it a case of `rackcast validate`."""

    step_time_s: Annotated[float, Field(gt=0)] | None = Field(None, description="Median wall time of a step.")
    tokens_per_s_per_accelerator: Annotated[float, Field(gt=0)] | None = Field(None, description="Throughput.")
    peak_allocated_bytes: Bytes | None = Field(None, description="Highest allocation of the framework's allocator.")
    peak_reserved_bytes: Bytes | None = Field(None, description="Most that the allocator took from the device.")
    first_step_peak_allocated_bytes: Bytes | None = Field(
        None, description="Highest allocation up to the end of the first step, which makes the optimizer's states."
    )
    held_allocated_bytes: Bytes | None = Field(
        None, description="What the allocator holds between two steps (Megatron-LM's mem-allocated)."
    )
    source: Annotated[str, Field(min_length=1, description="Who measured it, with what.")]


class Scenario(Described):
    """One training job on one cluster."""

    parallel: Parallel = Parallel()
    training: Training
    campaign: Campaign | None = Field(None, description="The whole run; absent: one step is all that is forecast.")
    measured: Measured | None = Field(None, description="A measurement to compare the forecast with.")
