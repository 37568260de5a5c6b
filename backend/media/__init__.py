"""Pictures and videos as files. Light."""
