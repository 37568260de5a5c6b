"""The processes that make videos, and the conversation with them."""
