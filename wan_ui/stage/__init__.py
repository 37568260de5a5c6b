"""The stage: the column that shows the current video."""
