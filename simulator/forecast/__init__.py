"""Scenario in, forecast out: summary, ledger, intervals, verdict, advice."""
