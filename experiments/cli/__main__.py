"""`python -m experiments.cli` is `dpmf`."""

from experiments.cli.main import entry

if __name__ == "__main__":
    entry()
