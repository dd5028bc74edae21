"""Ratings: read, named, split, and generated. Nothing here needs jax."""
