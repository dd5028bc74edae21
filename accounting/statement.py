"""The text of a privacy statement, which is printed with every result."""

import math
import textwrap

from accounting import gaussian, plain
from accounting.digits import printed, printed_delta, printed_down, printed_up
from accounting.loss import BestOf, Gaussian, Loss, Pure, SubsampledGaussian, distance
from accounting.status import REAL_NUMBERS, meaning
from accounting.terms import Terms

SHOWN = 4  # phases whose noise a statement spells out
# What a letter of the noise stands for, by the letter.
LETTERS = {
    "z": "z: the noise's standard deviation σ, over Δ or over the clip C",
    "Δ": "Δ: the most that a protected change moves a step",
    "q": "q: how likely a rating is in a sample",
    "ρ": "ρ: 1/(2z²) of every step, added up; releases about the same people add up too",
}
GROUPS = 24  # of users with budgets of their own, a line each

KINDS = {
    "paper": "the paper's own number, not a price of ours",
    "basic": "upper bound, basic composition",
    "optimal": "exact, the worst pure mechanism of this ε composed with itself",
    "closed_form": "upper bound, equation (9) of paper 001",
    "rdp": "upper bound, dp_accounting's Rényi accountant",
    "pld": "upper bound, dp_accounting's privacy loss distribution",
    "exact": "exact, the Gaussian trade-off",
}


def lines(guarantee: Terms) -> list[str]:
    """The privacy statement, line by line, each at most 110 characters unless a word is longer."""
    g = guarantee
    out = ["EXPERIMENT: seeded, do not release"] if g.seeded else []
    out.append(f"PRIVACY STATEMENT: {g.mechanism}, {_steps(g)}")
    if g.status == "none":
        why = "; ".join(g.assumptions) or "no reason was given"
        out += _wrapped(f"NO PRIVACY GUARANTEE: {why}. Nothing is protected, for nobody.")
        out += _entry("released", ", ".join(g.released)) + _entry("trust model", g.trust_model)
        return out
    if g.epsilon < math.inf:
        out.append("  in plain words")
        for sentence in plain.sentences(g):
            out += _wrapped(sentence, "    - ", "      ")
    out += _wrapped(_headline(g))
    out += _entry("status", meaning(g.status, g.claimed_by))
    if g.leaves_open:
        out += _entry("leaves open", g.leaves_open)
    out += _entry("unit", f"one {g.unit}")
    out += _entry("relation", str(g.relation))
    out += _own_budgets(g)
    if g.user_price:
        out += _entry("per user", g.user_price)
    out += _entry("released", ", ".join(g.released))
    out += _entry("trust model", g.trust_model)
    if g.against:
        out.append("  against whom it holds")
        width = max(len(party) for party, _ in g.against)
        for party, holds in g.against:
            out += _wrapped(holds, f"    {party:<{width}}  ", " " * (width + 6))
    noise = [_noise_of(phase, len(g.losses) > 1) for phase in g.losses[:SHOWN]]
    noise += [f"and {len(g.losses) - SHOWN} more phases"] if len(g.losses) > SHOWN else []
    noise += (
        [f"L2 sensitivity Δ = {g.sensitivity:.6g} of each step"]
        if g.sensitivity is not None
        else []
    )
    noise += [f"ρ = {printed_up(g.rho)} in all"] if g.rho is not None else []
    if (drawn := printed_down(g.surplus_noise)) != "1":
        noise.append(f"σ is what is relied on: a response has at least {drawn} times as much")
    if (apart := distance(g.losses)) and g.epsilon < 700:
        share = printed_up((1 + math.exp(g.epsilon)) * apart)
        noise.append(f"at most {share} of δ for drawing it from tables of whole numbers")
    if noise:
        told = ", ".join(noise)
        out += _entry("noise", told)
        if meant := [words for letter, words in LETTERS.items() if f"{letter} = " in told]:
            out += _entry("", "; ".join(meant))
    if g.accountants:
        out.append(
            f"  ε at δ = {printed_delta(g.delta)} by accountant"
            + (", if the claim holds" if g.status == "claimed" else "")
        )
        width = max(map(len, g.accountants))
        for name, epsilon in g.accountants.items():
            kind = f" ({KINDS[name]})" if name in KINDS else ""
            out.append(f"    {name:<{width}}  {printed(epsilon)}{kind}")
        if g.rho is not None and g.rho > gaussian.PLD_LIMIT and "pld" not in g.accountants:
            out.append(
                f"    {'pld':<{width}}  skipped: above ρ = {gaussian.PLD_LIMIT:g} it takes too long"
            )
    for title, sentences in (("assumptions", g.assumptions), ("not covered", g.not_covered)):
        if sentences:
            out.append(f"  {title}")
            for sentence in sentences:
                out += _wrapped(sentence, "    - ", "      ")
    return out


def _own_budgets(g: Terms) -> list[str]:
    """A line for each group of users with a budget of their own."""
    if not g.groups:
        return []
    change = {"user replaced": "replaced", "user added or removed": "added or removed"}
    done = change.get(g.relation.kind, "changed as the relation says")
    out = ["  budgets of one's own, declared beforehand; the one above holds for everybody"]
    for group in g.groups[:GROUPS]:
        out += _wrapped(
            f"ε = {printed(group.epsilon)} (rounded up), δ = {printed_delta(g.delta)}: one user, of"
            f" {group.num_users:,} in the group, {done}",
            "    - ",
            "      ",
        )
    rest = g.groups[GROUPS:]
    if rest:
        low, high = (pick(group.epsilon for group in rest) for pick in (min, max))
        users = sum(group.num_users for group in rest)
        out += _wrapped(
            f"and {len(rest)} more groups of {users:,} users, ε from {printed(low)} to"
            f" {printed(high)}",
            "    - ",
            "      ",
        )
    return out


def _headline(guarantee: Terms) -> str:
    g = guarantee
    if g.epsilon == math.inf:
        return f"NO FINITE EPSILON holds at δ = {printed_delta(g.delta)}: treat it as no guarantee"
    kind = "Claimed differential privacy" if g.status == "claimed" else "Differential privacy"
    law = " for real-number noise" if g.status == REAL_NUMBERS else ""
    return f"{kind}{law}: ε = {printed(g.epsilon)} (rounded up), δ = {printed_delta(g.delta)}"


def headline(g: Terms) -> str:
    """The guarantee in one line, for results that only use what it is about.

    It never takes the place of the statement.
    """
    seeded = "experiment, do not release: " if g.seeded else ""
    if g.status == "none":
        return f"{seeded}no privacy guarantee, {_steps(g)}"
    status = f"{g.status}," if g.status == REAL_NUMBERS else g.status
    price = f"{status} ε = {printed(g.epsilon)} (rounded up) at δ = {printed_delta(g.delta)}"
    return f"{seeded}{price}, unit: one {g.unit}, {_steps(g)}; released: {', '.join(g.released)}"


def _noise_of(phase: Loss, several: bool) -> str:
    """The noise of one phase; with the number of its steps where there are several phases."""
    match phase:
        case Gaussian():
            steps = _number(phase.num_steps) if several else "each step"
            return f"z = σ/Δ = {printed_down(phase.noise_multiplier)} in {steps}"
        case SubsampledGaussian():
            steps = _number(phase.num_steps) if several else "each step"
            sample = f"on a sample of rate q = {printed_up(phase.sampling_rate)}"
            return f"z = σ/C = {printed_down(phase.noise_multiplier)} {sample} in {steps}"
        case BestOf():
            runs = f"{printed_up(phase.mean_runs, 3)} on average"
            each = ", ".join(_noise_of(step, True) for step in phase.run)
            return f"the best of a random, secret number of runs ({runs}), in each of them: {each}"
        case Pure(num_rounds=1):
            return f"a pure ε = {printed_up(phase.epsilon)}"
        case Pure():
            return (
                f"a pure ε/k = {printed_up(phase.epsilon / phase.num_rounds)} in each of k ="
                f" {phase.num_rounds} rounds"
            )
        case _:
            return (
                f"(ε, δ) = ({printed_up(phase.epsilon)}, {printed_up(phase.delta)}),"
                f" {phase.num_steps} times"
            )


def _steps(g: Terms) -> str:
    return _number(g.steps)


def _number(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _entry(name: str, text: str) -> list[str]:
    return _wrapped(text, f"  {name:<13}", " " * 15)


def _wrapped(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, 110, initial_indent=first, subsequent_indent=rest, break_long_words=False
    )
