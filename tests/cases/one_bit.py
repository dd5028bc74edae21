"""The one-bit report of paper 004, as printed."""

import math


def one_bit_probability(value, epsilon):
    """The probability of a 1, (x(e^ε − 1) + e^ε + 1)/(2(e^ε + 1)), x clipped to [−1, 1].

    Algorithms 1 (line 10) and 2 (line 12); ε here is their ε/k. Computed as ½(1 + x)·s +
    ½(1 − x)·(1 − s), s = e^ε/(e^ε + 1), with both s and 1 − s to the last digits.
    """
    x, flip = max(-1.0, min(1.0, value)), math.exp(-epsilon)
    return ((1 + x) / 2 + (1 - x) / 2 * flip) / (1 + flip)
