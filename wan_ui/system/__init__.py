"""The system view: the state of the machine and of the server."""
