"""Accelerators, nodes, links and fabrics as data; curves of what they attain."""
