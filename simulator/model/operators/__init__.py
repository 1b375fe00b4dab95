"""Operators of each kind of mixer and feed-forward part: one file of the kind's name, found through importlib.

Such a file offers `operators(component, hidden, workload)`, in forward order, for a component that reads the tensor
named `MIXER_INPUT` or `FEED_FORWARD_INPUT` (`lane.py`). `layers.py` puts them into layers; the other files here hold
the pieces that several kinds share.
"""
