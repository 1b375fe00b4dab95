"""Prices of splits from several sources, each for a part of the work: what is cheap to tell rules most splits out."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.planner.least_prices import LeastPrices
from simulator.planner.split_prices import SplitPrices
from simulator.planner.splits import Column, Splits
from simulator.planner.stages import Edges, StageSums, Values

Source = LeastPrices | SplitPrices


@dataclass(frozen=True, slots=True)
class MixedPrices:
    """Sources of the prices of *own* tokens, of *rows*, and of *exchanges*."""

    own: Source
    rows: Source
    sent: Source

    def alike(self, splits: Splits) -> Splits:
        """*splits* with one way of exchange for those that the prices of exchanges do not tell apart."""
        return self.sent.alike(splits)

    def tokens(self, splits: Splits, edges: Edges) -> StageSums:
        """What runs over a rank's own tokens."""
        return self.own.tokens(splits, edges)

    def routed(self, splits: Splits, edges: Edges) -> StageSums:
        """What runs over routed rows, but exchanges."""
        return self.rows.routed(splits, edges)

    def exchanges(self, splits: Splits, edges: Edges) -> Values:
        """Seconds of exchanges forward, backward and where they run again, then of all on each level's busiest port,
        [splits, 3 + levels, stages].
        """
        return self.sent.exchanges(splits, edges)

    def told(self, splits: Splits, edges: Edges) -> Values:
        """Seconds in which the host waits for numbers of rows, forward, backward and in what runs again,
        [splits, 3, stages].
        """
        return self.sent.told(splits, edges)

    def late(self, splits: Splits, edges: Edges) -> Values:
        """Seconds by which the host is late behind such waits: forward where a pass runs alone and where it runs beside
        a backward pass, and in what runs again; and how often it waits forward, [splits, 4, stages].
        """
        return self.sent.late(splits, edges)

    def slots(self, splits: Splits) -> Column:
        """Experts that a rank holds, at least."""
        return self.rows.slots(splits)

    def exchange_bytes(self, splits: Splits) -> Values:
        """Buffers that the exchange of rows keeps on a rank."""
        return self.sent.exchange_bytes(splits)

    def add_ends(self, splits: Splits, forward: Values, backward: Values) -> None:
        """Add the embedding on the first stage, and the loss on the last."""
        self.own.add_ends(splits, forward, backward)
