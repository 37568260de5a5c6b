"""MagCache on the demo model: what it spares, and that a step has no branch in its program."""
