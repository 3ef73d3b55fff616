"""Converted models as ExecuTorch programs."""
