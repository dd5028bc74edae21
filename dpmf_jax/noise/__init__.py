"""Laws of noise: each sampler beside its density."""
