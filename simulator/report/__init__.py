"""Charts, trace and tables of a forecast."""
