"""Gaussian steps on secret Poisson samples: DP-SGD and Langevin dynamics."""
