"""Whether a quantized model still answers as the float one does, and what to do where it does not."""
