"""What the forecast takes for the cases of tests/validation/measure_skew.py.

python tests/skew_prices.py CASES > prices.json    # {id: seconds, of a product with rows for each rank a list}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from simulator.hardware.cluster import assemble
from simulator.hardware.kernel_time import kernel_time
from simulator.hardware.library import load_accelerator, load_fabric, load_node
from simulator.program.alone import exchange_alone_s

H200, HGX = load_accelerator("h200-sxm", Path()), load_node("hgx-h200", Path())


def price_s(case: dict[str, Any]) -> float | list[float]:
    """Seconds of an exchange, or of each rank's product."""
    if case["kind"] == "all_to_all":
        cluster = assemble(HGX, H200, load_fabric("single-node", Path()), len(case["rows"]))
        return exchange_alone_s(cluster, np.array(case["rows"]) * float(case["row_bytes"]))
    rows = np.array(case["rows"])
    return product_s(case, rows) if rows.ndim == 1 else [product_s(case, own) for own in rows]


def product_s(case: dict[str, Any], rows: np.ndarray) -> float:
    """Of the experts of a rank, bf16."""
    n, k = case["out"], case["inner"]
    flops, traffic = 2.0 * rows.sum() * n * k, 2.0 * (rows.sum() * (n + k) + rows.size * n * k)
    return float(kernel_time(H200, "grouped_gemm", flops, traffic, (n, k), rows=rows).seconds)


if __name__ == "__main__":
    found = {case["id"]: price_s(case) for case in json.loads(Path(sys.argv[1]).read_text())}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
