"""Audits of a mechanism's parts: sensitivity, noise, coins, densities, and the privacy loss they
add up to.
"""
