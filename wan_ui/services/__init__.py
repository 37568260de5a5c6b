"""What all views share: who is asking and what they may do, jobs' files, followed jobs, and changes."""
