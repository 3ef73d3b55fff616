"""What a person wants to see of a quantized model."""
