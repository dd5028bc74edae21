"""Paper 003's figures and tables."""
