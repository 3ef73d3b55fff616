"""Ranges that training learns: one file per method, and the straight-through rounding that all stand on."""
