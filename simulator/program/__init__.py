"""Where the worlds meet: lowers a training step to the engine's tasks and prices each."""
