"""Why a quantized model answers otherwise than the float one: both side by side, layer by layer."""
