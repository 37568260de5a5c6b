"""The self-test that `app.py doctor` runs on the devices of this machine."""
