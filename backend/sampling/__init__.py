"""From noise to clean latents: solvers and the plan of the steps."""
