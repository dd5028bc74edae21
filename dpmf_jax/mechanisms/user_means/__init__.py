"""Noisy user levels: how far each user's ratings lie from a public centre; nothing of the items."""
