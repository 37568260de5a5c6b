"""One video of any model: loading, warming up, generating."""
