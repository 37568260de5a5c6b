"""Code that several model families share. Nothing here depends on a family."""
