"""Everything that works with JAX but knows no model: mesh, programs, executables, devices."""
