"""Expert-routing traces: reading, resampling, synthesis."""
