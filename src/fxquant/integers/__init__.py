"""Converted models as programs on integers alone: read, run in NumPy, dumped for a device."""
