"""The queue and what it keeps. Light."""
