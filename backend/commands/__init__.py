"""What can be typed. Light but for the `*_run` modules, which are processes of their own."""
