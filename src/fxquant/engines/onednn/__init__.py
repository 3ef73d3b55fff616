"""torch's oneDNN kernels: the engine that is always there."""
