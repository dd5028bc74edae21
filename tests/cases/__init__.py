"""What several test files share: small ratings, settings, programs in processes of their own."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
