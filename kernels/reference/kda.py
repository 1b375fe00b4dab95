"""KDA token by token, which is its definition, and as the chain of small operators that it is without a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Inputs = Sequence[torch.Tensor]
UNIT_EPSILON = 1e-6


def activated(inputs: Inputs, lower_bound: float) -> tuple[torch.Tensor, ...]:
    """(q, k, v, log decay, beta) in fp32: q and k of length one, q scaled by D^-1/2."""
    q, k, v, raw, beta, rate, bias = (x.float() for x in inputs)
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + UNIT_EPSILON) for x in (q, k))
    g = lower_bound * torch.sigmoid(rate[:, None] * (raw + bias))
    return q * q.shape[-1] ** -0.5, k, v, g, torch.sigmoid(beta)


def kda_recurrent(
    inputs: Inputs,
    lengths: Sequence[int] | None = None,
    begin_SHDD: torch.Tensor | None = None,
    lower_bound: float = -5.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o_THD, last states) by the recurrence, one token after the other, in fp32."""
    q, k, v, g, beta = activated(inputs, lower_bound)
    (T, H, D), outputs, finals, at = q.shape, [], [], 0
    for sequence, length in enumerate((T,) if lengths is None else lengths):
        state = q.new_zeros(H, D, D) if begin_SHDD is None else begin_SHDD[sequence]
        for t in range(at, at + length):
            state = state * g[t].exp()[:, :, None]
            new = (v[t] - torch.einsum("hk,hkv->hv", k[t], state)) * beta[t][:, None]
            state = state + k[t][:, :, None] * new[:, None, :]
            outputs.append(torch.einsum("hk,hkv->hv", q[t], state))
        finals.append(state)
        at += length
    return torch.stack(outputs), torch.stack(finals)


def kda_small_operators(inputs: Inputs, lower_bound: float = -5.0, chunk: int = 64) -> torch.Tensor:
    """One sequence of whole chunks by PyTorch operators: thousands of launches, and [C, C, D] decays in memory."""
    T, H, D = inputs[0].shape
    split = [x.view(T // chunk, chunk, H, -1).transpose(1, 2) for x in activated(inputs, lower_bound)]
    q, k, v, g, beta = split
    total = g.cumsum(2)
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    difference = (total[:, :, :, None] - total[:, :, None]).masked_fill(~lower[..., None], -torch.inf).exp()
    kk = torch.einsum("lhid,lhjd,lhijd->lhij", k, k, difference) * beta
    qk = torch.einsum("lhid,lhjd,lhijd->lhij", q, k, difference)
    inverse = _inverse_by_rows(kk.tril(-1))
    solve = inverse * beta.transpose(2, 3)
    w, u = solve @ (k * total.exp()), solve @ v
    whole = total[:, :, -1:]
    late = k * (whole - total).exp()
    state, outputs = q.new_zeros(H, D, D), []
    for at in range(T // chunk):
        new = u[at] - w[at] @ state
        outputs.append((q[at] * total[at].exp()) @ state + qk[at] @ new)
        state = state * whole[at].exp().transpose(1, 2) + late[at].transpose(1, 2) @ new
    return torch.stack(outputs).transpose(1, 2).reshape(T, H, D).to(inputs[0].dtype)


def _inverse_by_rows(n: torch.Tensor) -> torch.Tensor:
    """(I + N)^-1 of strictly lower N by substitution, one row after the other."""
    rows = [torch.zeros_like(n[..., 0, :])]
    for i in range(1, n.shape[-1]):
        known = torch.stack(rows, -2)
        rows.append(-n[..., i, :] - (n[..., i, :i, None] * known).sum(-2))
    return torch.stack(rows, -2) + torch.eye(n.shape[-1], dtype=n.dtype, device=n.device)
