"""Small pieces that all views draw."""
