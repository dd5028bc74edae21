"""Paper 003: noise in the objective, as published and sound."""
