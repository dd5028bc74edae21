"""Paper 001's figures."""
