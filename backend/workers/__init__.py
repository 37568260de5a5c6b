"""The processes that make videos, and the messages between them and the engine."""
