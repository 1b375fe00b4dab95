"""Kernels of parts at their power limit, beside the timings that say what is left of their rate there."""

from pathlib import Path

import pytest

from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator

B200 = load_accelerator("b200-sxm", Path())
SIMUMAX = load_accelerator("b200-sxm-simumax", Path())
H100_500W = load_accelerator("h100-sxm-96g-hbm2e", Path())
H100 = load_accelerator("h100-sxm", Path())

LONG_PRODUCTS = [  # m, k, n, attained share of 2,250 TFLOP/s
    (16384, 8192, 128256, 0.4852),
    (32768, 16384, 53248, 0.4750),
    (32768, 16384, 64128, 0.4715),
    (32768, 26624, 16384, 0.4719),
    (32768, 8192, 64128, 0.4787),
    (65536, 5120, 102400, 0.5035),
    (16384, 128256, 8192, 0.4785),
    (32768, 16384, 26624, 0.4755),
    (32768, 53248, 16384, 0.4623),
    (32768, 64128, 16384, 0.4621),
    (32768, 64128, 8192, 0.4676),
    (65536, 102400, 5120, 0.4599),
    (128256, 16384, 8192, 0.4622),
    (16384, 32768, 26624, 0.4623),
    (53248, 32768, 16384, 0.4547),
    (64128, 32768, 16384, 0.4514),
    (64128, 32768, 8192, 0.4590),
    (102400, 65536, 5120, 0.4687),
]
"""MooreThreads/SimuMax@4dcaae5, b200_bf16_ceperm.json: products of 28 TFLOP and more, a hundred times back to back."""


def product_s(part, m, k, n, dtype="bf16"):
    size = 2 if dtype == "bf16" else 1
    traffic = size * (m * k + k * n) + 2 * m * n
    return float(kernel_time(part, "gemm", 2 * m * k * n, traffic, (m, n, k), dtype).seconds)


def test_products_that_ran_for_seconds_take_as_long_on_the_whole_and_none_is_a_twelfth_off():
    measured = [2 * m * k * n / (2250e12 * share) for m, k, n, share in LONG_PRODUCTS]
    priced = [product_s(SIMUMAX, m, k, n) for m, k, n, _ in LONG_PRODUCTS]
    assert min(measured) > 2.6e-2
    assert sum(priced) == pytest.approx(sum(measured), rel=0.002)
    assert all(p == pytest.approx(m, rel=0.08) for p, m in zip(priced, measured, strict=True))


def test_attention_within_a_step_keeps_what_a_long_run_of_it_keeps():
    flops = 4 * 128 * 64 * 8192**2 / 2
    work = {"kind": "attention", "flops": flops, "bytes": 1.0, "shape": (64, 128, 8192)}
    start_s = 3e-6
    alone_s = float(kernel_time(B200, **work, alone=True).seconds) - start_s
    within_s = float(kernel_time(B200, **work).seconds) - start_s
    assert alone_s / within_s == pytest.approx(1237 / 1450, abs=0.001)


@pytest.mark.parametrize(("elements", "measured_s"), [(2**16, 2.044e-6), (2**28, 156.563e-6)])
def test_a_map_over_half_precision_values(elements, measured_s):
    assert float(kernel_time(B200, "elementwise", 0, 4 * elements).seconds) == pytest.approx(measured_s, rel=0.01)


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "measured_s"),
    [
        (8192, 8192, 8192, "bf16", 1.879e-3),
        (65536, 7168, 8192, "bf16", 13.383e-3),
        (65536, 8192, 3584, "bf16", 7.044e-3),
        (8192, 8192, 8192, "fp8/rowwise", 0.977e-3),
        (65536, 7168, 8192, "fp8/rowwise", 7.108e-3),
        (65536, 8192, 3584, "fp8/rowwise", 3.372e-3),
        (16384, 8192, 7168, "bf16", 3.57e-3),
        (16384, 3584, 8192, "bf16", 1.59e-3),
        (16384, 8192, 7168, "fp8", 1.39e-3),
        (16384, 3584, 8192, "fp8", 7.45e-4),
    ],
)
def test_products_on_an_h100_that_is_limited_to_500_w(m, k, n, dtype, measured_s):
    assert product_s(H100_500W, m, k, n, dtype) == pytest.approx(measured_s, rel=0.09)


def test_the_share_of_bf16_at_500_w_is_the_mean_of_what_five_products_ask_for():
    products = [
        (8192, 8192, 8192, 1.879e-3),
        (65536, 7168, 8192, 13.383e-3),
        (65536, 8192, 3584, 7.044e-3),
        (16384, 8192, 7168, 3.57e-3),
        (16384, 3584, 8192, 1.59e-3),
    ]
    share, start_s = 0.62, 2.5e-6
    asked = [share * (product_s(H100_500W, m, k, n) - start_s) / (t - start_s) for m, k, n, t in products]
    assert asked == pytest.approx([0.641, 0.616, 0.587, 0.586, 0.672], abs=0.0006)
    assert sum(asked) / len(asked) == pytest.approx(share, abs=0.0005)


LLAMA_70B = [(16384, 8192, 1280), (16384, 1024, 8192), (16384, 8192, 7168), (16384, 3584, 8192), (8192, 8192, 8192)]
"""m, n, k of the products that SemiAnalysis timed (2024-12-22)."""


@pytest.mark.parametrize(("dtype", "measured_flops_per_s"), [("bf16", 620e12), ("fp8", 990e12)])
def test_products_of_llama_70b_on_an_mi300x(dtype, measured_flops_per_s):
    part = load_accelerator("mi300x", Path())
    rates = [2 * m * n * k / product_s(part, m, k, n, dtype) for m, n, k in LLAMA_70B]
    assert sum(rates) / len(rates) == pytest.approx(measured_flops_per_s, rel=0.02)


@pytest.mark.parametrize(
    ("head_dim", "length", "measured_s"),
    [(64, 1024, 0.2589e-3), (64, 8192, 8.607e-3), (128, 2048, 1.281e-3), (128, 8192, 15.19e-3), (128, 16384, 57.39e-3)],
)
def test_pytorchs_attention_on_an_mi300x(head_dim, length, measured_s):
    flops, traffic = 4 * head_dim * 256 * length**2 / 2, 4 * 2 * 256 * length * head_dim
    part = load_accelerator("mi300x", Path())
    seconds = kernel_time(part, "attention", flops, traffic, (16, head_dim, length)).seconds
    assert float(seconds) == pytest.approx(measured_s, rel=0.01)


@pytest.mark.parametrize(
    ("part", "m", "n", "k", "measured_flops_per_s"),
    [
        ("mi325x", 13312, 10240, 8192, 784.9e12),
        ("mi355x", 12288, 8192, 8192, 1565e12),
    ],
)
def test_the_best_products_of_instinct_parts(part, m, n, k, measured_flops_per_s):
    seconds = product_s(load_accelerator(part, Path()), m, k, n)
    assert 2 * m * n * k / seconds == pytest.approx(measured_flops_per_s, rel=0.01)


@pytest.mark.parametrize(("dtype", "lost_within_a_step"), [("bf16", 0.111), ("fp8", 0.0)])
def test_a_product_timed_at_the_power_limit_loses_nothing_more_within_a_step(dtype, lost_within_a_step):
    work = {"kind": "gemm", "flops": 2 * 8192**3, "bytes": 1.0, "shape": (8192, 8192, 8192), "dtype": dtype}
    start_s = 2.5e-6
    alone_s = float(kernel_time(H100, **work, alone=True).seconds) - start_s
    within_s = float(kernel_time(H100, **work).seconds) - start_s
    assert alone_s / within_s == pytest.approx(1 - lost_within_a_step)
