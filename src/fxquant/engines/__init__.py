"""What runs a converted graph."""
