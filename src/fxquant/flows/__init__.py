"""Loops over data."""
