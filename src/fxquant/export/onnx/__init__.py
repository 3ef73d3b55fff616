"""Converted models as ONNX files."""
