"""Several workers in parallel. A supervisor restarts each worker when it dies. Imports neither jax nor torch."""
