"""Which ways of context parallelism a model's mixers can take, and whether their heads divide.

Each kind of mixer says in its operators' file which ways are known of it (`contexts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from simulator.model.architecture import Architecture, Mixer
from simulator.model.operator import Context
from simulator.model.split import nearest_degrees, share, split_counts


def context_problems(architecture: Architecture, way: Context, tp: int, cp: int) -> list[str]:
    """What keeps *cp* ranks from attending by *way* where *tp* ranks split the heads: a sentence a problem."""
    if cp == 1:
        return []
    mixers = dict.fromkeys(layer.mixer for layer in architecture.layers if layer.mixer is not None)
    found = [problem for mixer in mixers for problem in _problems(mixer, way, tp, cp)]
    return list(dict.fromkeys(found))


def _problems(mixer: Mixer, way: Context, tp: int, cp: int) -> Iterator[str]:
    known: tuple[Context, ...] = import_module(f"simulator.model.operators.{mixer.kind}").contexts(mixer)
    if way not in known:
        yield f"{way} is not known of this model's {mixer.kind.replace('_', ' ')}; allowed: {', '.join(known)}"
    elif way == "all_to_all":
        for split, count in split_counts(share(mixer, tp)):
            if count % cp:
                fits = [n for n in range(1, count + 1) if count % n == 0]
                yield (
                    f"all_to_all shares out heads, but cp({cp}) does not divide {split.what} of "
                    f"{mixer.kind.replace('_', ' ')} that a rank of tp({tp}) holds: {count} / {cp} = {count / cp:.2f}; "
                    f"the nearest degrees that do are {nearest_degrees(fits, cp)}"
                )
