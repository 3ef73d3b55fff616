"""Search for the fastest model within a tolerance, from one calibration; and what each tensor costs in accuracy."""
