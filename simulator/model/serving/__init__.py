"""Serving: forward passes with a cache. One file for each kind of mixer, found through importlib.

Such a file names the operators of a training step's forward pass that read no cache (`REPLACED`) and offers
`cached(component, hidden, workload, iteration)`: those that stand in their place. `layers.py` rewrites layers with it.
"""
