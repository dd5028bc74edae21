"""Paper 003's crowd: users send messages, an untrusted recommender adds them up."""
