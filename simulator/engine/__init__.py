"""A small discrete-event library for clusters on SimPy: tasks on streams, collectives, shared links, memory. Knows no models."""
