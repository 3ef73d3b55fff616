"""Graphs by running `forward` on proxies."""
