"""Code that uses JAX but does not depend on a model: mesh, programs, executables, devices."""
