"""Denoising from noise to clean latents: solvers and the step plan."""
