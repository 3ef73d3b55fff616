"""Graphs by `torch.export`."""
