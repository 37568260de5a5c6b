"""What the families share, a file for each idea. A family takes from here what it needs; nothing here knows a family."""
