"""What the TPU's own compiler says about our programs, without a chip: memory, scheduled cycles, predicted seconds."""
