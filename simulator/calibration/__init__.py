"""Timings of real kernels and collectives on the GPUs at hand. Needs torch, and nothing else of rackcast.

    python -m simulator.calibration POINTS.jsonl [kind ...]
    torchrun --nproc-per-node 2 -m simulator.calibration COLLECTIVES.jsonl
    python -m simulator.calibration.table POINTS.jsonl points.parquet

A kind is a module of this package with a function `measure(quick=...)` that yields points.
"""
