"""Makes one video with any model: loading, compiling ahead, generating."""
