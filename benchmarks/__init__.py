"""Measurements. Each checks its numerics first, prints a table and writes JSON."""
