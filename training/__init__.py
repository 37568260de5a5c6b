"""The code that made the demo checkpoint in `models/wan-tiny`. Nothing in the product imports it."""
