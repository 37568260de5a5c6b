"""The values that cross processes: requests, events, shapes, what a worker says of itself. Light."""
