"""The compiled arithmetic that mechanisms share; no randomness and no privacy."""
