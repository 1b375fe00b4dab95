"""Operators of each kind of module: their kernels, saved tensors and workspace. One file a kind, found by its name."""
