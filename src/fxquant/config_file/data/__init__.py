"""Datasets, transforms and batches that a file can name."""
