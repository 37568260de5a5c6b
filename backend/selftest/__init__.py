"""What `app.py doctor` tries on the devices of this machine."""
