"""Mechanisms, by what they add noise to; each family is a package."""
