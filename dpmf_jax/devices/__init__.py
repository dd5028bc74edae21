"""Where arrays live: devices, processes, and the keys of their randomness."""
