"""The work with JAX: the mesh, programs, executables, devices. Knows no model."""
