"""The commands of `app.py`. Imports are quick, except in the `*_run` modules, which run in separate processes."""
