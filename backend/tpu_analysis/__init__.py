"""Reports about programs for TPUs from the TPU's compiler, without a chip: memory, scheduled cycles, predicted seconds."""
