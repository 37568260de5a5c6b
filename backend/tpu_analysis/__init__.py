"""What the TPU's compiler reports about our programs, without a chip: memory, scheduled cycles, predicted seconds."""
