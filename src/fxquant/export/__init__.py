"""Converted models in the formats of other tools."""
