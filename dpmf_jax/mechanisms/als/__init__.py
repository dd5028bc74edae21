"""Alternating least squares with noisy item statistics: joint privacy per user."""
