"""Analyse TPU programs with the TPU's compiler, without a chip: memory, scheduled cycles, predicted seconds."""
