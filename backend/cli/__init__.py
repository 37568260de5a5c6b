"""The commands of `app.py`. Light, except for the `*_run` modules, which run in processes of their own."""
