"""Serving: requests through the engines of a deployment, and what comes of it.

`requests.py` and `request_traces.py` say who comes when; `cache_pool.py`, `prefix_cache.py`, `rank.py` and
`engine.py` are an inference engine; `loop.py` runs engines on one clock; `pricing.py` prices their iterations.
"""
