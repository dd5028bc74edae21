"""Paper 001: Gaussian noise on gradients, as published and sound."""
