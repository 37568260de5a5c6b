"""The line of waiting videos."""
