"""What a fit leaves: models, their files, and how well they predict and rank."""
