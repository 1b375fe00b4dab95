import pytest

torch = pytest.importorskip("torch", reason="needs the extra calibrate: pip install -e .[calibrate,dev]")
triton = pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for Linux")
if not triton.knobs.runtime.interpret:
    pytest.skip("set TRITON_INTERPRET=1: these tests interpret the kernels on the CPU", allow_module_level=True)

from kernel_checks import distance, drawn, heads

from kernels import kda_chain, kda_chain_backward
from kernels.kda import LOG2_E, checked, chunks_of
from kernels.reference import kda as plain

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
CLOSE = 1e-4
TOKENS, WIDTH = 70, 16
"""One chunk of 64 tokens and one of 6."""


def steps() -> tuple[list[torch.Tensor], torch.Tensor, kda_chain.Kept]:
    inputs = heads(TOKENS, 1, WIDTH)
    chunks = checked(inputs, None, -5.0, 64)
    sums = kda_chain.decays(inputs, chunks, -5.0)
    return inputs, sums, kda_chain.scores(inputs, sums, chunks)


def test_lengths_of_queries_and_keys() -> None:
    inputs, _, kept = steps()
    q, k, *_ = plain.activated(inputs, -5.0)
    assert distance(kept.q_THD, q) < CLOSE
    assert distance(kept.k_THD, k) < CLOSE


def test_decays_are_summed_within_chunks() -> None:
    inputs, sums, _ = steps()
    log = plain.activated(inputs, -5.0)[3] * LOG2_E
    assert distance(sums[:64], log[:64].cumsum(0)) < CLOSE
    assert distance(sums[64:], log[64:].cumsum(0)) < CLOSE


def test_scores_and_the_inverse_of_the_system() -> None:
    inputs, _, kept = steps()
    q, k, _, g, beta = (x[:64, 0] for x in plain.activated(inputs, -5.0))
    total = g.cumsum(0)
    difference = (total[:, None] - total[None]).masked_fill(~torch.ones(64, 64).tril().bool()[..., None], -torch.inf)
    qk, kk = (torch.einsum("id,jd,ijd->ij", x, k, difference.exp()) for x in (q, k))
    system = torch.eye(64) + (kk * beta[:, None]).tril(-1)
    assert distance(kept.a_THC[:64, 0], qk) < CLOSE
    assert distance(kept.inverse_THC[:64, 0] @ system, torch.eye(64)) < CLOSE


def test_vectors_and_the_walk() -> None:
    inputs, sums, kept = steps()
    chunks = chunks_of((TOKENS,), sums.device, 64)
    w, u, kg = kda_chain.vectors(inputs, kept, sums, chunks)
    _, k, v, g, beta = (x[:64, 0] for x in plain.activated(inputs, -5.0))
    total, inverse = g.cumsum(0), kept.inverse_THC[:64, 0]
    assert distance(w[:64, 0], inverse @ (k * total.exp() * beta[:, None])) < CLOSE
    assert distance(u[:64, 0], inverse @ (v * beta[:, None])) < CLOSE
    assert distance(kg[:64, 0], k * (total[-1:] - total).exp()) < CLOSE
    states, new, _ = kda_chain.states((w, u, kg), sums, chunks, None)
    assert distance(new[:64], u[:64]) < CLOSE
    _, after = plain.kda_recurrent([x[:64] for x in inputs[:5]] + inputs[5:])
    assert distance(states[1], after[0]) < CLOSE


@pytest.mark.parametrize("lengths", [(1,), (64,), (3, 130, 17)])
def test_forward_of_sequences_of_any_length(lengths: tuple[int, ...]) -> None:
    inputs = heads(sum(lengths), 2, WIDTH)
    begin = drawn(len(lengths), 2, WIDTH, WIDTH, seed=9)
    found, wanted = kda_chain.kda_chain_forward(inputs, lengths, begin), plain.kda_recurrent(inputs, lengths, begin)
    assert max(distance(a, b) for a, b in zip(found[:2], wanted, strict=True)) < CLOSE


@pytest.mark.parametrize("lengths", [(64,), (3, 130, 17)])
def test_gradients_of_every_input(lengths: tuple[int, ...]) -> None:
    inputs, begin = heads(sum(lengths), 2, WIDTH), drawn(len(lengths), 2, WIDTH, WIDTH, seed=9)
    gradients = drawn(sum(lengths), 2, WIDTH, seed=10), drawn(len(lengths), 2, WIDTH, WIDTH, seed=11)
    found, wanted = [], []
    for function, into in ((kda_chain_backward.kda_chain, found), (plain.kda_recurrent, wanted)):
        leaves = [x.clone().requires_grad_() for x in (*inputs, begin)]
        torch.autograd.backward(function(leaves[:-1], lengths, leaves[-1]), gradients)
        into += [leaf.grad for leaf in leaves]
    assert max(distance(a, b) for a, b in zip(found, wanted, strict=True)) < CLOSE


def test_the_strongest_decay_at_every_token() -> None:
    inputs = heads(64, 1, WIDTH)
    inputs[3][:] = 30.0
    found, wanted = (f(inputs, lower_bound=-10.0) for f in (kda_chain.kda_chain_forward, plain.kda_recurrent))
    assert distance(found[0], wanted[0]) < CLOSE
