"""Writes scenarios/requests/chats.jsonl: an hour of made-up chats, in the layout of Mooncake's traces.

Chats begin at random times (Poisson), start with one of three system prompts, and go on for a few turns; each turn's
prompt is all that was said before and some more. Lengths follow log-normal laws. Nothing of it was recorded.
"""

from __future__ import annotations

import json
from itertools import count

import numpy as np

HASH_TOKENS = 512
CHATS_PER_S = 0.12
HOUR_S = 3600
SYSTEM_TOKENS = (512, 1024, 2048)
SEED = 7


def rows() -> list[dict[str, object]]:
    """All requests, in order of arrival."""
    rng, found, fresh = np.random.default_rng(SEED), [], count(1)
    system = [[next(fresh) for _ in range(tokens // HASH_TOKENS)] for tokens in SYSTEM_TOKENS]
    began_s = rng.exponential(1 / CHATS_PER_S)
    while began_s < HOUR_S:
        kind = int(rng.integers(len(system)))
        hashes, tokens, at_s = list(system[kind]), SYSTEM_TOKENS[kind], began_s
        for _ in range(1 + int(rng.poisson(2))):
            tokens += int(np.clip(rng.lognormal(5.5, 1.0), 10, 8000))
            answer = int(np.clip(rng.lognormal(5.3, 0.8), 5, 2000))
            hashes += [next(fresh) for _ in range(-(-tokens // HASH_TOKENS) - len(hashes))]
            found.append(
                {"timestamp": round(1000 * at_s), "input_length": tokens, "output_length": answer,
                 "hash_ids": list(hashes)}
            )  # fmt: skip
            # The last block was not full: the next turn fills it with something else.
            hashes = hashes[: tokens // HASH_TOKENS]
            tokens += answer
            at_s += 20 + float(rng.exponential(40))
        began_s += rng.exponential(1 / CHATS_PER_S)
    return sorted(found, key=lambda row: int(str(row["timestamp"])))


if __name__ == "__main__":
    for row in rows():
        print(json.dumps(row))
