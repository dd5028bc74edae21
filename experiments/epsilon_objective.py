"""`dpmf epsilon objective` and `dpmf epsilon federated`: what paper 003's noise costs, as published and sound."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpmf_jax.errors import PrivacyError, UsageError
from experiments import console
from experiments import epsilon_report as report

if TYPE_CHECKING:
    from accounting.guarantee import Guarantee


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """The price of paper 003's perturbed objective by --scale, or the smallest scale for an --epsilon.

    objective is as published (user factors fitted on the same ratings: claimed), objective-public-users its sound
    variant, both for a rating's value; objective-statistics has noise on both sums, for a rating's presence.
    """

    mechanism: Literal["objective", "objective-public-users", "objective-statistics"] = "objective"
    """Whose noise it is: it decides status and relation."""
    unit: Literal["rating-value", "rating-presence"] | None = None
    """What neighbouring data sets differ in; the mechanism's own by default."""
    noise: Literal["laplace", "l2-laplace", "gaussian"] | None = None
    """laplace: in every coordinate; l2-laplace: by its L2 norm (the default); gaussian: always for the statistics."""
    scale: float | None = None
    """b of the Laplace noises, sigma of the Gaussian, of the noise on twice the sum of u·r."""
    epsilon: float | None = None
    """A target to solve the scale for, instead; the answer costs no more."""
    range_width: float | None = None
    """Width of the declared range of ratings: the largest change of one."""
    rank: int | None = None
    """d, the number of factors."""
    matrix_scale: float | None = None
    """objective-statistics: sigma on the sum of u·u', instead of --scale."""
    vector_scale: float | None = None
    """objective-statistics: sigma on the sum of u·r."""
    rating_bound: float | None = None
    """objective-statistics: ratings are clipped to so much on either side of a public centre."""
    delta: float | None = None
    """For Gaussian noise, 1e-5 by default; pure noise needs none."""
    solve: Literal["epsilon", "scale", "delta"] | None = None
    """What is unknown; without it the scale where --epsilon is given, epsilon otherwise. delta: Gaussian noise only."""
    user_ratings: int | None = None
    """Also the price of all ratings of a user who has so many."""
    json: bool = False
    """Print one JSON object on stdout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Federated:
    """The price of T noisy iterations of paper 003's federated protocol.

    With --epsilon alone: as published, the paper's number and T times as much, claimed and not proved.
    With --clip-norm: every user clips a whole message; proved, per user, by --scale or solved for an --epsilon.
    """

    iterations: int | None = None
    """T, fixed up front."""
    epsilon: float | None = None
    """As published: of the noise in each iteration. With --clip-norm: a target of the whole to solve the scale for."""
    range_width: float | None = None
    """As published: width of the declared range of ratings, 4 by default (1 to 5 stars); the price is the same."""
    clip_norm: float | None = None
    """C, the bound on a user's whole message in one iteration."""
    noise: Literal["laplace", "l2-laplace", "gaussian"] | None = None
    """With --clip-norm: its law, gaussian by default; it decides in which norm a message is clipped."""
    scale: float | None = None
    """With --clip-norm: b or sigma of the sum over users, in every iteration."""
    change: Literal["replace", "remove"] | None = None
    """With --clip-norm: a user's data are all replaced (the default), or removed."""
    honest_shares: int | None = None
    """With --clip-norm: how many users, whoever drops out or colludes, surely add their share of the noise."""
    delta: float | None = None
    """With --clip-norm: 1e-5 for Gaussian noise; for pure noise that of the optimal composition, none by default."""
    solve: Literal["epsilon", "scale", "iterations", "delta"] | None = None
    """With --clip-norm: what is unknown; without it the scale where --epsilon is given, epsilon otherwise."""
    json: bool = False
    """Print one JSON object on stdout."""


def run(command: Objective | Federated) -> None:
    report.check_flags(command, pure=isinstance(command, Federated) and command.noise in ("laplace", "l2-laplace"))
    program = f"dpmf epsilon {type(command).__name__.lower()}"
    with report.pricing(program):
        result, guarantee = _objective(command) if isinstance(command, Objective) else _federated(command)
    console.emit(result, json=command.json, render=lambda shown: _render(shown, guarantee))


def _require(command: Any, program: str, *, needed: Sequence[str], unused: Sequence[str], why: str) -> None:
    """Refuses a command line, naming every flag that is missing or means nothing here."""
    missing = [report.flag(name) for name in needed if getattr(command, name) is None]
    idle = [report.flag(name) for name in unused if getattr(command, name) is not None]
    if missing or idle:
        told = [f"missing {', '.join(missing)}"] if missing else []
        told += [f"{', '.join(idle)} means nothing here"] if idle else []
        raise UsageError(f"{why}: {'; '.join(told)}", where=program, fix=f"give {', '.join(map(report.flag, needed))}")


def _check_solved(command: Any, program: str, *, noise: Sequence[Sequence[str]], others: Sequence[str] = ()) -> str:
    """What is unknown: as --solve says, or what is not given of scale and ε. Refuses what does not fit.

    Args:
      noise: ways to write the noise, each by flags that go together.
      others: further quantities that have to be given unless they are solved for.
    """
    if command.solve is None:
        _one_of(command, program, (*noise, ("epsilon",)))
        solve = "epsilon" if command.epsilon is None else "scale"
    else:
        solve = command.solve
        if solve == "scale":
            _require(
                command, program, needed=("epsilon",), unused=[f for way in noise for f in way], why="for the scale"
            )
        else:
            _one_of(command, program, noise)
            given = ("epsilon",)
            needed, unused = ((), given) if solve == "epsilon" else (given, ("delta",) if solve == "delta" else ())
            _require(command, program, needed=needed, unused=unused, why=f"to solve for {solve}")
    needed = [name for name in others if name != solve]
    unused = [name for name in others if name == solve]
    _require(command, program, needed=needed, unused=unused, why=f"to solve for {solve}")
    return solve


def _least_delta(guarantee: Guarantee, epsilon: float, program: str) -> float:
    """δ at which the loss costs just ε: of Gaussian steps by the exact trade-off, of pure rounds by the optimal one."""
    from accounting import gaussian, loss, pure

    (spent,) = guarantee.losses
    if isinstance(spent, loss.Gaussian):
        delta = gaussian.solve_delta(epsilon, spent.noise_multiplier, spent.num_steps, price="exact")
    else:
        assert isinstance(spent, loss.Pure)
        if spent.epsilon <= epsilon:
            return 0.0
        each = math.nextafter(spent.epsilon / spent.num_rounds, math.inf)
        delta = pure.delta_optimal(each, spent.num_rounds, epsilon)
    if not (delta := report.shown_delta(delta)) < 1:
        raise UsageError(
            f"no δ below 1 holds at ε = {report.exactly(epsilon)}",
            where=program,
            fix="a larger scale, or a larger --epsilon",
        )
    return delta


def _one_of(command: Any, program: str, ways: Sequence[Sequence[str]]) -> None:
    """Refuses a command line that does not give exactly one of these ways to write the noise."""
    given = [way for way in ways if all(getattr(command, name) is not None for name in way)]
    touched = [way for way in ways if any(getattr(command, name) is not None for name in way)]
    if len(given) != 1 or touched != given:
        words = " or ".join(" with ".join(map(report.flag, way)) for way in ways)
        state = "missing" if not touched else "incomplete" if not given else "they say the same"
        raise UsageError(f"exactly one way to write the noise is needed ({state})", where=program, fix=f"give {words}")


# ---- one release --------------------------------------------------------------------------------------------------


def _objective(command: Objective) -> tuple[dict[str, Any], Guarantee]:
    statistics = command.mechanism == "objective-statistics"
    own = "rating-presence" if statistics else "rating-value"
    if command.unit not in (None, own):
        if not statistics:
            raise PrivacyError(
                f"mechanism {command.mechanism} has no finite ε for a rating's presence",
                where="a rating added or removed moves the noise by its residual, which grows with the item factors",
                fix="--mechanism objective-statistics, which has noise on both sums",
            )
        raise PrivacyError(
            "mechanism objective-statistics is priced for a rating's presence",
            where="a changed value is one removed and one added, at up to four times ρ",
            fix="--unit rating-presence, or --mechanism objective-public-users",
        )
    result, guarantee = _statistics(command) if statistics else _value_change(command)
    user = guarantee.for_user(command.user_ratings)._asdict() if command.user_ratings else None
    return {**result, "user": user, "notes": report.price_notes(guarantee.accountants, guarantee.delta)}, guarantee


def _value_change(command: Objective) -> tuple[dict[str, Any], Guarantee]:
    from accounting import objective

    program = "dpmf epsilon objective"
    unused = ("matrix_scale", "vector_scale", "rating_bound")
    _require(command, program, needed=("range_width", "rank"), unused=unused, why=f"mechanism {command.mechanism}")
    solve = _check_solved(command, program, noise=(("scale",),))
    noise = _law(command.noise or "l2-laplace")
    delta = _delta(command, noise, program)
    if solve == "delta" and delta is None:
        raise UsageError("pure noise costs the same at every δ", where=program, fix="--solve epsilon, or scale")
    assert command.range_width is not None
    assert command.rank is not None
    shape: dict[str, Any] = {"range_width": command.range_width, "rank": command.rank}
    scale = command.scale
    if solve == "scale":
        assert command.epsilon is not None
        scale = objective.value_change_scale(noise=noise, epsilon=command.epsilon, delta=delta, **shape)
    assert scale is not None
    if command.mechanism == "objective":
        guarantee = objective.published_guarantee(noise=noise, scale=scale, **shape)
    else:
        guarantee = objective.closed_form_guarantee(noise=noise, scale=scale, delta=delta or 0.0, **shape)
    if solve == "delta":
        guarantee = guarantee.at_delta(_least_delta(guarantee, command.epsilon or math.nan, program))
    title = f"{noise.replace('_', '-')} noise, b or σ = {report.at_least(scale)}"
    told = _told(command, guarantee, title, scale, solve)
    squared = objective.squared_noise(noise, scale=scale, rank=command.rank)
    return {**told, "noise": noise.replace("_", "-"), **shape, "squared_noise_per_item": squared}, guarantee


def _statistics(command: Objective) -> tuple[dict[str, Any], Guarantee]:
    from accounting import objective

    program = "dpmf epsilon objective"
    why = "mechanism objective-statistics"
    _require(command, program, needed=("rating_bound",), unused=("scale", "range_width", "rank"), why=why)
    solve = _check_solved(command, program, noise=(("matrix_scale", "vector_scale"),))
    if command.noise not in (None, "gaussian"):
        raise UsageError(f"{why} has Gaussian noise, not {command.noise}", where=program, fix="--noise gaussian")
    delta = _delta(command, "gaussian", program)
    assert delta is not None
    assert command.rating_bound is not None
    matrix, vector = command.matrix_scale, command.vector_scale
    if solve == "scale":
        assert command.epsilon is not None
        matrix, vector = objective.statistics_scales(
            epsilon=command.epsilon, delta=delta, rating_bound=command.rating_bound
        )
    assert matrix is not None
    assert vector is not None
    guarantee = objective.statistics_guarantee(
        matrix_scale=matrix, vector_scale=vector, rating_bound=command.rating_bound, delta=delta
    )
    if solve == "delta":
        guarantee = guarantee.at_delta(_least_delta(guarantee, command.epsilon or math.nan, program))
    title = f"gaussian noise, σ = {report.at_least(matrix)} on Σuuᵀ, {report.at_least(vector)} on Σur"
    told = _told(command, guarantee, title, None, solve)
    scales = {"matrix_scale": matrix, "vector_scale": vector, "rating_bound": command.rating_bound}
    return {**told, "noise": "gaussian", **scales}, guarantee


# ---- iterations ---------------------------------------------------------------------------------------------------


def _federated(command: Federated) -> tuple[dict[str, Any], Guarantee]:
    from accounting import objective

    program = "dpmf epsilon federated"
    if command.clip_norm is None:
        unused = ("scale", "honest_shares", "delta", "noise", "change")
        why = "without --clip-norm, as published"
        unused = (*unused, *(("solve",) if command.solve not in (None, "epsilon") else ()))
        _require(command, program, needed=("epsilon", "iterations"), unused=unused, why=why)
        assert command.epsilon is not None
        assert command.iterations is not None
        guarantee = objective.published_iterations_guarantee(
            epsilon=command.epsilon, num_iterations=command.iterations, range_width=command.range_width or 4.0
        )
        title = f"{report.counted(command.iterations, 'iteration')} as published"
        told = _told(command, guarantee, title, None, "epsilon")
        told |= {"target": None, "epsilon_iteration": command.epsilon, "iterations": command.iterations}
        note = "the paper states ε once, for the whole run; each iteration is a release of its own, and they add up"
        return {**told, "user": None, "notes": [note]}, guarantee
    why = "with --clip-norm, per user"
    _require(command, program, needed=("honest_shares",), unused=("range_width",), why=why)
    solve = _check_solved(command, program, noise=(("scale",),), others=("iterations",))
    noise, change = _law(command.noise or "gaussian"), command.change or "replace"
    delta = command.delta if noise != "gaussian" or command.delta is not None else report.USUAL_DELTA
    shape: dict[str, Any] = {"clip_norm": command.clip_norm, "change": change}
    scale, iterations, cut = command.scale, command.iterations, []
    if solve == "scale":
        assert iterations is not None
        scale = _iterations_scale(command, noise, delta, shape)
    assert scale is not None
    if solve == "iterations":
        iterations, cut = _affordable(command, noise, scale, delta, shape, program)
    assert iterations is not None
    assert command.honest_shares is not None
    shape |= {"num_iterations": iterations}
    guarantee = objective.iterations_guarantee(
        noise=noise, scale=scale, honest_shares=command.honest_shares, delta=delta or 0.0, **shape
    )
    if solve == "delta":
        guarantee = guarantee.at_delta(_least_delta(guarantee, command.epsilon or math.nan, program))
    law = noise.replace("_", "-")
    title = f"{report.counted(iterations, 'iteration')}, {law} noise, b or σ = {report.at_least(scale)}"
    told = _told(command, guarantee, title, scale, solve)
    told |= {"iterations": iterations, "clip_norm": command.clip_norm, "change": change}
    return {
        **told,
        "noise": law,
        "user": None,
        "notes": [*cut, *report.price_notes(guarantee.accountants, guarantee.delta)],
    }, guarantee


def _iterations_scale(command: Federated, noise: Any, delta: float | None, shape: Mapping[str, Any]) -> float:
    """The smallest scale whose stated price, by the optimal composition where pure noise has a δ, is at most ε."""
    from accounting import objective, pure

    assert command.epsilon is not None
    assert command.iterations is not None
    if noise == "gaussian" or not delta:
        of_solver = delta if noise == "gaussian" else None
        epsilon, count = command.epsilon, command.iterations
        return objective.iterations_scale(noise=noise, epsilon=epsilon, delta=of_solver, num_iterations=count, **shape)
    each = pure.solve_epsilon_round(command.epsilon, command.iterations, delta)
    scale = objective.iterations_scale(noise=noise, epsilon=each, num_iterations=1, **shape)
    return scale * (1 + 1e-12)  # ε of all iterations is a product, rounded up, and shared again where it is priced


def _affordable(
    command: Federated, noise: Any, scale: float, delta: float | None, shape: Mapping[str, Any], program: str
) -> tuple[int, list[str]]:
    """The largest number of iterations that costs at most ε, and a note where --iterations takes no more."""
    from accounting import gaussian, loss, objective, pure

    assert command.epsilon is not None
    one = objective.iterations_per_user(noise=noise, scale=scale, num_iterations=1, **shape)
    if isinstance(one, loss.Gaussian):
        assert delta is not None
        count = gaussian.solve_num_steps(command.epsilon, delta, one.noise_multiplier)
    else:
        assert isinstance(one, loss.Pure)
        each = one.epsilon if not delta else one.epsilon * (1 + 1e-12)
        count = pure.solve_num_rounds(command.epsilon, each, delta or 0.0)
        more = objective.iterations_per_user(noise=noise, scale=scale, num_iterations=count + 1, **shape)
        if not delta and isinstance(more, loss.Pure) and more.epsilon <= command.epsilon:
            count += 1  # ε of one was rounded up, and the product is not that of rounded ones
    if not count >= 1:
        raise UsageError(
            f"not one iteration costs as little as ε = {report.exactly(command.epsilon)}",
            where=program,
            fix="a larger --scale or --epsilon, or a smaller --clip-norm",
        )
    return report.capped(count, "iterations")


# ---- both ---------------------------------------------------------------------------------------------------------


def _law(name: str) -> Any:
    return name.replace("-", "_")


def _delta(command: Objective, noise: str, program: str) -> float | None:
    """δ of the Gaussian; None for pure noise, where giving one is refused."""
    if noise == "gaussian":
        if command.mechanism == "objective":
            raise UsageError(
                "mechanism objective is the paper's: its noise is laplace or l2-laplace",
                where=program,
                fix="--mechanism objective-public-users --noise gaussian",
            )
        return report.USUAL_DELTA if command.delta is None else command.delta
    if command.delta is not None:
        raise UsageError(
            f"--delta means nothing for pure noise ({command.noise or 'l2-laplace'})",
            where=program,
            fix="leave out --delta",
        )
    return None


def _told(command: Any, guarantee: Guarantee, title: str, scale: float | None, solve: str) -> dict[str, Any]:
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
        **report.of_guarantee(guarantee),
    }


def _render(result: Mapping[str, Any], guarantee: Guarantee) -> Any:
    drawn = report.table(f"{result['mechanism']}: {result['title']}", guarantee.accountants, result["delta"])
    lines = []
    if (solved := result["solved"]) != "epsilon":
        answers = {
            "delta": f"--delta {report.at_least(result['delta'])}",
            "iterations": f"--iterations {result.get('iterations')}",
            "scale": " ".join(
                f"{report.flag(name)} {report.at_least(result[name])}"
                for name in ("scale", "matrix_scale", "vector_scale")
                if result.get(name) is not None
            ),
        }
        lines.append(f"solved: {answers[solved]}, for ε = {report.exactly(result['target'])}")
    if "squared_noise_per_item" in result:
        lines.append(f"E‖η‖² of one item's noise: {report.at_least(result['squared_noise_per_item'], 6)}")
    lines += report.user_lines(result)
    return report.page(drawn, lines, result["notes"], report.without_prices(guarantee))
