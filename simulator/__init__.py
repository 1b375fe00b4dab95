"""rackcast: a forecast for a rack.

Tells, before anyone pays for cluster time, whether a large-model job fits, how fast it runs, what limits it and what
to change.
"""
