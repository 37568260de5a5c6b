"""What is asked for: prompt, picture, settings."""
