"""Metrics that a file can name."""
