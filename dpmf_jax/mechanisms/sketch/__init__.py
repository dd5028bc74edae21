"""Paper 002: factors in a count sketch, as published and sound."""
