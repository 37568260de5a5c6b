"""The processes that generate videos, and the messages between them and the engine."""
