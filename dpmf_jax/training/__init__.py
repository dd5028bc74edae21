"""The training loop around a mechanism: fits, sweeps, checkpoints, controls."""
