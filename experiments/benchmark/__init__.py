"""Private recommenders beside each other: fits of many settings, splits and seeds, as one table."""
