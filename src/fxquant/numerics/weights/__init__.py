"""The life of a weight: fold its norm, find its range, train it rounded, hold its integers."""
