"""Paper 004's figures and tables."""
