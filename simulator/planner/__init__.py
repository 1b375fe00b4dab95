"""Which changes help: enumerate, prune, simulate, rank."""
