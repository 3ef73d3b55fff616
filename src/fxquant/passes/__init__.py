"""Passes: each takes a Region and gives it back changed."""
