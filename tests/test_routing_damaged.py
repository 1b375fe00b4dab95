import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing import RoutingError, read_trace

SAVED = Path(__file__).parent / "traces"
LOGITS, PICKS = io.BytesIO(), io.BytesIO()
np.savez(LOGITS, router_logits_0=np.arange(32.0).reshape(8, 4), router_logits_1=np.ones((8, 4)))
np.save(PICKS, np.arange(24, dtype=np.int16).reshape(6, 2, 2))
LINE = {"step": 0, "layer": 1, "rank": 0, "num_tokens": 2, "topk": 2, "top_indices": [[0, 1], [2, 3]]}
WHOLE = {
    "stat.pt": (SAVED / "stat.pt").read_bytes(),
    "per_token.pt": (SAVED / "per_token.pt").read_bytes(),
    "logits.npz": LOGITS.getvalue(),
    "picks.npy": PICKS.getvalue(),
    "counts.json": b'{"logical_count": [[1, 2, 3], [4, 5, 6]]}',
    "rank0.jsonl": json.dumps(LINE | {"stage": "pre_dispatch", "block": "decoder"}).encode(),
    "counts.csv": b"layer,expert,count\n0,0,5\n0,1,7\n",
}
edits = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4
)
"""Places as shares of the file, how many bytes are cut there, and what is put in."""


@pytest.mark.parametrize("name", WHOLE)
@given(edits=edits)
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, name, edits):
    content = bytearray(WHOLE[name])
    for place, cut, put in edits:
        at = int(place * len(content))
        content[at : at + cut] = put
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes(content)
    try:
        read_trace(file)
    except RoutingError as error:
        assert str(file) in str(error)  # noqa: PT017, a file that can still be read is right, too


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("picks.npy", b"}", b"(", "its header is damaged"),
        ("picks.npy", b"'descr'", b"b'escr'", "its header is damaged"),
        ("stat.pt", b"stat/byteorder", b"stat/byte\xddrder", "is damaged at byteorder"),
    ],
)
def test_damage_that_general_readers_trip_over(tmp_path, name, old, new, message):
    assert old in WHOLE[name]
    (tmp_path / name).write_bytes(WHOLE[name].replace(old, new, 1))
    with pytest.raises(RoutingError, match=message):
        read_trace(tmp_path / name)
