"""Who sends a request, what they may see and send, and what all views share."""
