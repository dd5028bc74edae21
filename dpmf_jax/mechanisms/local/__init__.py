"""Paper 004: local differential privacy, one coordinate and one bit a round."""
