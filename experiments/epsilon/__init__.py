"""`dpmf epsilon`: what a release costs."""
