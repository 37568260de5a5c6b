"""Endpoints for programs."""
