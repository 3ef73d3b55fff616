"""Machine code for converted graphs, made with LLVM: see docs/engines.md."""
