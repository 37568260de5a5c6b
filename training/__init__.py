"""The code that makes the demo checkpoints in `models`. Nothing in the product imports it."""
