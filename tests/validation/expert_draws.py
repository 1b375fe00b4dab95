"""Experts that tokens choose in a measured run, drawn ahead, so that a forecast knows how popular each one was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def draws(iterations: int, layers: int, tokens: int, experts: int, top_k: int, skew: float) -> npt.NDArray[np.int64]:
    """[iterations, layers, tokens, top_k] different experts each; expert i is wanted as (i + 1) ** -skew.

    The largest of the logarithm of that and a Gumbel-distributed draw are taken, which is drawing without replacement.
    """
    rng = np.random.default_rng(0)
    wanted = -skew * np.log(np.arange(1, experts + 1))
    noise = rng.gumbel(size=(iterations, layers, tokens, experts))
    return np.argsort(-(wanted + noise), axis=-1)[..., :top_k]


def popularity(chosen: npt.NDArray[np.int64], experts: int) -> npt.NDArray[np.float64]:
    """Share of all rows that each expert took, [experts]."""
    return np.bincount(chosen.reshape(-1), minlength=experts) / chosen.size
