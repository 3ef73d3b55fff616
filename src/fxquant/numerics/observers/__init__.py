"""Look at tensors in calibration and training, remember a fixed amount, answer with a range: one file per observer."""
