"""Prompts written by another model, in the taste of the one that makes the video. Light: models run in processes of their own."""
