"""Paper 002's figures and tables."""
