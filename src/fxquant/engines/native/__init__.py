"""Machine code for converted graphs, made with LLVM: see docs/architecture.md, "The native engine"."""
