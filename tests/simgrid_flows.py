"""Runs flows that start together through SimGrid's max-min solver; a process of its own, since it has one engine.

Standard input: {"links": {name: bytes/s}, "flows": [{"links": [name, ...], "bytes": n}, ...]}, standard output: a list
of each flow's end in seconds. The plain flow model: no latencies, no windows, no cross traffic, no factors.
"""

import json
import sys
from typing import Any

import simgrid

PLAIN = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "maxmin/precision:1e-9",
)


def main() -> None:
    asked = json.load(sys.stdin)
    engine = simgrid.Engine(["flows", *(f"--cfg={setting}" for setting in PLAIN), "--log=root.thresh:critical"])
    zone = simgrid.NetZone.create_full_zone("cluster")
    links = {name: zone.create_link(name, rate).seal() for name, rate in asked["links"].items()}
    ends = [0.0] * len(asked["flows"])
    pairs = [_pair(zone, number, [links[name] for name in flow["links"]]) for number, flow in enumerate(asked["flows"])]
    zone.seal()
    for number, (source, target) in enumerate(pairs):
        simgrid.Actor.create(str(number), source, _send, source, target, asked["flows"][number]["bytes"], ends, number)
    engine.run()
    json.dump(ends, sys.stdout)


def _pair(zone: Any, number: int, links: list[Any]) -> tuple[Any, Any]:
    source, target = (zone.create_host(f"{side} {number}", 1.0).seal() for side in ("source", "target"))
    route = [simgrid.LinkInRoute(link) for link in links]
    zone.add_route(source.netpoint, target.netpoint, None, None, route, False)
    return source, target


def _send(source: Any, target: Any, size_bytes: int, ends: list[float], number: int) -> None:
    simgrid.Comm.sendto_async(source, target, size_bytes).wait()
    ends[number] = simgrid.Engine.clock


if __name__ == "__main__":
    main()
