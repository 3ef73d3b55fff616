"""The demo: a float model and its int8 twin, side by side on every engine here, and a report about them."""
