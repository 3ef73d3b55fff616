"""Positions of power-of-two scales: what holds between them, and which are best."""
