"""Small pieces that all views use."""
