"""What `dpmf epsilon objective` and `federated` share: a price by a scale, and its page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmf_jax.errors import UsageError
from experiments.epsilon import report
from experiments.epsilon.flags import LARGEST_COUNT, flag

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee


def law(name: str) -> Any:
    """A flag's l2-laplace as the law that it names."""
    return name.replace("-", "_")


def least_delta(guarantee: Guarantee, epsilon: float, program: str) -> float:
    """The δ at which the loss costs just ε.

    Of Gaussian steps it is exact; of pure rounds it is that of the optimal composition.
    """
    from accounting import gaussian, loss, pure

    (spent,) = guarantee.losses
    if isinstance(spent, loss.Gaussian):
        delta = gaussian.solve_delta(
            epsilon, spent.noise_multiplier, spent.num_steps, price="exact"
        )
    else:
        assert isinstance(spent, loss.Pure)
        if spent.epsilon <= epsilon:
            return 0.0
        each = math.nextafter(spent.epsilon / spent.num_rounds, math.inf)
        delta = pure.delta_optimal(each, spent.num_rounds, epsilon)
    if not (delta := report.rounded_delta(delta)) < 1:
        raise UsageError(
            f"no δ below 1 holds at ε = {report.in_full(epsilon)}",
            where=program,
            fix="a larger scale, or a larger --epsilon",
        )
    return delta


def result_fields(
    command: Any, guarantee: Guarantee, title: str, scale: float | None, solve: str
) -> dict[str, Any]:
    price = min(value for name, value in guarantee.accountants.items() if name != "paper")
    if solve != "epsilon":
        report.check_answer(price, command.epsilon, solve)
    return {
        "mechanism": guarantee.mechanism,
        "title": title,
        "solved": solve,
        "target": command.epsilon,
        "epsilon": price,
        "delta": guarantee.delta,
        "scale": scale,
        "rho": guarantee.rho,
        **guarantee.accountants,
        "kinds": report.kinds(list(guarantee.accountants)),
        **report.guarantee_fields(guarantee),
    }


def curves(
    folder: Path, result: Mapping[str, Any], guarantee: Guarantee, *, noun: str, letter: str
) -> list[str]:
    """ε of so many iterations or releases, each with this noise, and δ against ε."""
    from accounting import loss, pure
    from experiments.epsilon import curves as epsilon_curves

    limited = all(isinstance(one, loss.Pure) for one in guarantee.losses)
    summed = limited and guarantee.steps > pure.ROUNDS_LIMIT
    names = (
        "paper",
        "basic",
        *(() if summed else ("optimal", "closed_form", "rdp", "pld", "exact")),
    )
    return epsilon_curves.draw(
        folder,
        epsilon_curves.first_steps(guarantee.losses),
        guarantee,
        title=f"{result['mechanism']}: {result['title']}",
        accountants=names,
        noun=noun,
        letter=letter,
        most=pure.ROUNDS_LIMIT if limited and not summed else LARGEST_COUNT,
    )


def render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    drawn = report.table(
        f"{result['mechanism']}: {result['title']}", guarantee.accountants, result["delta"]
    )
    lines = []
    if (solved := result["solved"]) != "epsilon":
        answers = {
            "delta": f"--delta {report.at_least(result['delta'])}",
            "iterations": f"--iterations {result.get('iterations')}",
            "scale": " ".join(
                f"{flag(name)} {report.at_least(result[name])}"
                for name in ("scale", "matrix_scale", "vector_scale")
                if result.get(name) is not None
            ),
        }
        lines.append(f"solved: {answers[solved]}, for ε = {report.in_full(result['target'])}")
    if "squared_noise_per_item" in result:
        lines.append(
            f"E‖η‖² of one item's noise: {report.at_least(result['squared_noise_per_item'], 6)}"
        )
    lines += [*report.user_lines(result), *report.written_lines(result)]
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
