"""`dpmf audit`: what it runs, and how it reports."""
