"""Serving: what one iteration of an inference engine holds and costs on a cluster."""
