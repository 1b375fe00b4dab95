"""A small discrete-event library for clusters on SimPy: tasks on streams, collectives, memory. Knows no models."""
