"""Triton kernels of the operators that decide this model family, each beside a plain PyTorch reference.

They run on NVIDIA GPUs and, slowly, in Triton's interpreter (``TRITON_INTERPRET=1``) on any CPU. Nothing of the
simulator needs them: they say what fused operators attain, where the simulator must not guess.
"""
