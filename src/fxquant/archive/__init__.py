"""The .fq file: a converted model as safetensors and rows of JSON, and the checked way back."""
