"""The library: the view of all finished videos."""
