"""`dpmf fit` and `dpmf demo`."""
