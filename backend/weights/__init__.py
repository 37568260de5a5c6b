"""Tensors from files onto devices."""
