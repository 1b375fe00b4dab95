"""Words that not everybody who gets a report knows, each explained in a sentence."""

from __future__ import annotations

_WORDS = {
    "MFU": "Model FLOPs utilization: arithmetic that the model needs, over what the accelerators could do meanwhile.",
    "step time": "From one optimizer update to the next. Half of all outcomes are expected below the figure in front, "
    "a tenth below p10, a tenth above p90.",
    "throughput": "Tokens of training data that a second of the whole job takes in.",
    "compute": "Kernels run on the accelerator.",
    "exposed expert all-to-all": "Rows of tokens travel to their experts or back, and nothing is computed meanwhile.",
    "exposed FSDP": "Parameters are gathered or gradients are reduced, and nothing is computed meanwhile.",
    "exposed copies to and from the host": "Waiting for copies between the accelerator and host memory.",
    "waiting for the host's cores": "The host's processors do a part of the work, and the accelerator waits for them.",
    "waiting for drives": "The accelerator waits for reads from or writes to NVMe drives.",
    "exposed tensor parallel": "Ranks that share a layer exchange partial results, and nothing is computed meanwhile.",
    "exposed pipeline transfer": "Activations or gradients go to the next pipeline stage, and nothing is computed "
    "meanwhile.",
    "pipeline bubble": "A pipeline stage has nothing to do: its work has not come yet, or is done.",
    "launch-bound": "The accelerator waits for its host to issue the next kernel.",
    "imbalance": "Waiting for a rank that has more to do, such as busier experts.",
    "HBM": "Memory of the accelerator itself.",
    "DDR": "Memory of the host beside the accelerator.",
    "NVMe": "Drives of the node.",
    "parameters": "Weights of the model that this rank keeps all the time.",
    "gradients": "What the update needs to know of each trained weight.",
    "optimizer": "States of the optimizer: moments, and master weights where they are kept.",
    "saved activations": "Results of the forward pass that the backward pass needs.",
    "gathered parameters": "Whole weights of some layers, put together from the shards of all ranks for a moment.",
    "reduce buffers": "Gradients on their way to the ranks that own them.",
    "communication buffers": "Memory that exchanges between ranks need.",
    "logits": "A score for every word of the vocabulary, for each token.",
    "workspace": "Memory that kernels need while they run.",
    "context": "What driver and libraries take before anything is allocated.",
    "caches": "Keys, values or states of the tokens before, which attention reads for each further token.",
    "weights": "Parameters of the served model, without what is listed beside them.",
    "experts": "Weights of the routed experts that lie on this rank.",
    "activations": "What the layers of one iteration hand to each other.",
    "staging buffers": "Pinned host memory that copies to and from drives go through.",
    "measured": "Priced on a curve that was measured on this very part.",
    "scaled": "Priced on the measured curve of another part, scaled by the data sheets of both.",
    "datasheet": "Priced on what the vendor's data sheet promises.",
    "assumed": "Priced on an assumption: neither measured nor documented.",
    "least sure": "Inputs that widen the interval of the forecast most.",
    "based on": "How much of the time rests on which kind of evidence.",
    "routing": "How unevenly tokens are spread over experts and over the ranks that hold them; 1 is even.",
    "first token": "From a request's arrival to the first token of its answer.",
    "further tokens": "Between two tokens of an answer.",
    "whole request": "From a request's arrival to the last token of its answer.",
    "dp_replicate": "Groups of ranks that hold whole copies of the same weights.",
    "dp_shard": "Ranks over which weights, gradients and optimizer states are sharded.",
    "efsdp": "Ranks over which the weights of the same experts are sharded.",
    "tp": "Tensor parallelism: ranks that share every layer.",
    "cp": "Context parallelism: ranks that share every sequence.",
    "pp": "Pipeline parallelism: ranks that hold different layers.",
    "ep": "Expert parallelism: ranks that hold different experts.",
    "etp": "Expert tensor parallelism: ranks that share every expert.",
}


def explanation(word: str) -> str:
    """What *word* means; empty for one that needs no explanation."""
    return _WORDS.get(word, "")
