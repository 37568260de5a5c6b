"""Benchmarks. Those that compute check their numerics first; each prints a table, and most write JSON."""
