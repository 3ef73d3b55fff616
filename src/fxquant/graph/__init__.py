"""fx mechanics without policy: regions, nodes, paths, notes, and the running of passes."""
