"""Move tensors from files onto devices."""
