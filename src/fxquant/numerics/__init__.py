"""Quantization on tensors and modules: affine maps, weights, observers, fake quantization. No graphs here."""
