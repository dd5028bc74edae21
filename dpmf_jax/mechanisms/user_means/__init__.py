"""Noisy user levels: how far each user's ratings lie from a public centre, and nothing of the
items.
"""
