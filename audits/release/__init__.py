"""Attacks on what is released: membership, one run, divergence."""
