"""The words of a privacy statement: the one text that is printed with every result."""

import math
import textwrap
from typing import TYPE_CHECKING

from accounting import gaussian

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee

DIGITS = 4  # decimals of a printed ε, rounded up

_KINDS = {
    "closed_form": "upper bound, equation (9) of paper 001",
    "rdp": "upper bound, dp_accounting's Rényi accountant",
    "pld": "upper bound, dp_accounting's privacy loss distribution",
    "exact": "exact, the Gaussian trade-off",
}

_STATUS = {
    "proved": "proved, under the assumptions below",
    "claimed": "claimed by the paper, and NOT proved: it does not hold in general",
}


def lines(guarantee: "Guarantee") -> list[str]:
    """The privacy statement, line by line, each at most 110 characters unless a word is longer."""
    g = guarantee
    out = ["EXPERIMENT: seeded, do not release"] if g.seeded else []
    steps = f"{g.steps} step{'' if g.steps == 1 else 's'}"
    out.append(f"PRIVACY STATEMENT: {g.mechanism}, {steps}")
    if g.status == "none":
        out += _wrapped(
            "NO PRIVACY GUARANTEE: there is no noise between the ratings and what is released. "
            "Nothing is protected, for nobody."
        )
        out += _entry("released", ", ".join(g.released)) + _entry("trust model", g.trust_model)
        return out
    out += _wrapped(_headline(g))
    out += _entry("status", _STATUS[g.status])
    out += _entry("unit", f"one {g.unit}")
    out += _entry("relation", g.relation)
    if g.user_price:
        out += _entry("per user", g.user_price)
    out += _entry("released", ", ".join(g.released))
    out += _entry("trust model", g.trust_model)
    noise = [f"z = σ/Δ = {g.noise_multiplier:.6g} in each step"] if g.noise_multiplier is not None else []
    noise += [f"L2 sensitivity Δ = {g.sensitivity:.6g} of each step"] if g.sensitivity is not None else []
    noise += [f"ρ = {g.rho:.6g} in all"] if g.rho is not None else []
    if noise:
        out += _entry("noise", ", ".join(noise))
    if g.accountants:
        out.append(f"  ε at δ = {g.delta:g} by accountant" + (", if the claim holds" if g.status == "claimed" else ""))
        width = max(map(len, g.accountants))
        for name, epsilon in g.accountants.items():
            kind = f" ({_KINDS[name]})" if name in _KINDS else ""
            out.append(f"    {name:<{width}}  {printed(epsilon)}{kind}")
        if g.rho is not None and g.rho > gaussian.PLD_LIMIT and "pld" not in g.accountants:
            out.append(f"    {'pld':<{width}}  skipped: above ρ = {gaussian.PLD_LIMIT:g} it takes too long")
    for title, sentences in (("assumptions", g.assumptions), ("not covered", g.not_covered)):
        if sentences:
            out.append(f"  {title}")
            for sentence in sentences:
                out += _wrapped(sentence, "    - ", "      ")
    return out


def _headline(guarantee: "Guarantee") -> str:
    g = guarantee
    if g.epsilon == math.inf:
        return f"NO FINITE EPSILON holds at δ = {g.delta:g}: treat it as no guarantee"
    kind = "Differential privacy" if g.status == "proved" else "Claimed differential privacy"
    return f"{kind}: ε = {printed(g.epsilon)} (rounded up), δ = {g.delta:g}"


def headline(g: "Guarantee") -> str:
    """The guarantee in one line, for results that only use what it is about; never in place of the statement."""
    seeded = "experiment, do not release: " if g.seeded else ""
    if g.status == "none":
        return f"{seeded}no privacy guarantee, {g.steps} steps"
    price = f"{g.status} ε = {printed(g.epsilon)} (rounded up) at δ = {g.delta:g}, unit: one {g.unit}, {g.steps} steps"
    return f"{seeded}{price}; released: {', '.join(g.released)}"


def printed(epsilon: float) -> str:
    return f"{gaussian.round_up(epsilon, DIGITS):.{DIGITS}f}"


def _entry(name: str, text: str) -> list[str]:
    return _wrapped(text, f"  {name:<13}", " " * 15)


def _wrapped(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    return textwrap.wrap(text, 110, initial_indent=first, subsequent_indent=rest, break_long_words=False)
