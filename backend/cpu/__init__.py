"""What PyTorch's kernels do faster than XLA on a CPU, as parts of our compiled programs. Other platforms see none of it."""
