"""JAX itself: the mesh, programs, executables, devices. Knows no model."""
