"""Code that several families share, one file for each idea. Nothing here depends on a family."""
