"""What a task's time is spent on, in the words and colours that every chart, table and trace shares.

Work is drawn in cool colours and wires in warm ones, so that a lane of communication stands out before its name is
read. The colours are those of Okabe and Ito (Color Universal Design, 2008), told apart under the common colour
blindnesses; the yellow is darkened to stand on white.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Group:
    """Kinds of task that share a colour."""

    label: str
    colour: str
    kinds: tuple[str, ...]
    nature: Literal["work", "wire", "copy", "other"] = "work"

    @property
    def ink(self) -> str:
        """Black or white, whichever reads better on the colour (relative luminance of ITU-R BT.709 on sRGB values)."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 140 else "#222222"


MEMORY_BOUND = (
    "elementwise",
    "situ",
    "broadcast",
    "cast_up",
    "cast_down",
    "masked_fill",
    "fill",
    "cat",
    "transpose",
    "reduction",
    "norm",
    "softmax",
    "topk",
    "sort",
    "gather",
    "scatter",
    "scatter_put",
    "copy",
    "list_copy",
    "split_copy",
    "part_copy",
    "rescale",
    "chunk_cat",
)
OTHER = Group("other", "#B4B9BD", (), "other")
GROUPS = (
    Group("matrix multiply", "#0072B2", ("gemm",)),
    Group("expert matrix multiply", "#56B4E9", ("grouped_gemm",)),
    Group(
        "attention",
        "#009E73",
        (
            "attention",
            "flash2",
            "flash_triton",
            "kda",
            "kda_prepare",
            "kda_scan",
            "kda_local",
            "vector_products",
            "scan",
            "conv",
            "indexer",
            "indexer_choice",
            "sparse_attention",
            "flash_mla",
        ),
    ),
    Group("element-wise", "#7D8B96", MEMORY_BOUND),
    Group("loss, optimizer", "#CC79A7", ("loss", "optimizer", "optimizer_foreach", "optimizer_8bit")),
    Group("expert all-to-all", "#D55E00", ("all_to_all",), "wire"),
    Group("all-gather", "#E69F00", ("all_gather",), "wire"),
    Group("reduce-scatter, all-reduce", "#C8B400", ("reduce_scatter", "all_reduce"), "wire"),
    Group("broadcast", "#F0B7A4", ("one_to_all",), "wire"),
    Group("send, receive", "#882255", ("send", "pipeline"), "wire"),
    Group("host copies", "#5D4037", ("copy_in", "copy_out"), "copy"),
    Group("host's cores", "#A1887F", ("cpu_optimizer", "cpu_pass")),
    Group("drives", "#78909C", ("drive_read", "drive_write", "drive_wait"), "copy"),
    Group("launch", "#DDDDDD", ("launch",), "other"),
    OTHER,
)
_GROUP_OF = {kind: group for group in GROUPS for kind in group.kinds}

STREAMS = {
    "compute": "compute",
    "all_to_all": "expert all-to-all",
    "tp": "tensor parallel",
    "cp": "context parallel",
    "pp_send_forward": "pipeline: send forward",
    "pp_receive_forward": "pipeline: receive forward",
    "pp_send_backward": "pipeline: send backward",
    "pp_receive_backward": "pipeline: receive backward",
    "fsdp_gather": "FSDP gather",
    "fsdp_reduce": "FSDP reduce",
    "fsdp_all_reduce": "FSDP all-reduce",
    "copy_in": "copy in",
    "copy_out": "copy out",
    "cores": "host's cores",
    "drive_read": "drives read",
    "drive_write": "drives write",
    "host": "host",
}
"""Streams that people know, from top to bottom, with the words for them."""


def group_of(kind: str) -> Group:
    """The group of *kind*; a kind that no group names is drawn as "other"."""
    return _GROUP_OF.get(kind, OTHER)


def streams_in_order(streams: tuple[str, ...]) -> list[str]:
    """The distinct *streams* from top to bottom: the usual ones first, then the rest in order of appearance."""
    found = list(dict.fromkeys(streams))
    return [s for s in STREAMS if s in found] + [s for s in found if s not in STREAMS]


def stream_label(stream: str) -> str:
    """Words for *stream*; an unusual one is its own label."""
    return STREAMS.get(stream, stream.replace("_", " "))
