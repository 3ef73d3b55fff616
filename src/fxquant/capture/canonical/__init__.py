"""Any captured graph in the one form that the passes know."""
