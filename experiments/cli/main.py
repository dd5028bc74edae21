"""The ``dpmf`` command: a table of programs, each imported only when it runs.

A program is a module with a frozen dataclass, whose fields are its flags, and a function that runs
it::

    @dataclass(frozen=True, kw_only=True)
    class Command:
        \"\"\"Fit a private model of a ratings matrix.\"\"\"  # begins `dpmf fit --help`

        data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
        \"\"\"A data set that `dpmf data list` knows, or a file.\"\"\"   # each field's help
        rating_range: tuple[float, float] | None = None
        \"\"\"Lowest and highest rating: declared, never computed.\"\"\"
        json: bool = False
        \"\"\"Print one JSON object on stdout.\"\"\"

    def run(command: Command) -> int | None:                  # the exit code; None is 0
        result = {...}
        console.emit(result, json=command.json, render=render)

Progress goes through `console.progress`, messages through `console.say`. A program raises a
`DpmfError` with what, where and fix for what a person can mend. It imports jax inside ``run`` only.
``--config FILE.toml`` (see `experiments.cli.settings`) and ``--debug`` come with every program.
"""

import difflib
import importlib
import io
import os
import shlex
import signal
import sys
import textwrap
import typing
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NoReturn

from dpmf_jax.errors import UsageError
from dpmf_jax.installed import refuse_others
from experiments.cli import console, parser_messages, program_cache, settings

# Name: (what it does, module:dataclass). `run` stands in the same module.
COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("fit a model, price it, save it", "experiments.fit.command:Command"),
    "tune": (
        "fit several settings, release the best, at one price",
        "experiments.fit.tune:Command",
    ),
    "epsilon gaussian": (
        "Gaussian steps on all of the data",
        "experiments.epsilon.gaussian:Command",
    ),
    "epsilon sampled": (
        "Gaussian steps on secret Poisson samples",
        "experiments.epsilon.sampled:Sampled",
    ),
    "epsilon langevin": (
        "Langevin dynamics on secret Poisson samples",
        "experiments.epsilon.langevin:Langevin",
    ),
    "epsilon local": (
        "one-bit reports of each user, shuffled or not",
        "experiments.epsilon.local:Local",
    ),
    "epsilon plan": (
        "what one-bit reports can be expected to give",
        "experiments.epsilon.plan:Command",
    ),
    "epsilon objective": (
        "objective perturbation: the noise of one fit",
        "experiments.epsilon.objective:Objective",
    ),
    "epsilon federated": (
        "noisy federated iterations, claimed and sound",
        "experiments.epsilon.federated:Federated",
    ),
    "epsilon pure": ("rounds of pure differential privacy", "experiments.epsilon.pure:Pure"),
    "epsilon model": ("a saved model, by every accountant", "experiments.epsilon.model:Command"),
    "epsilon verify": (
        "the closed form against every other way to compute it",
        "experiments.epsilon.verify:Command",
    ),
    "budget show": (
        "what was released about each data set, added up",
        "experiments.cli.budget:Show",
    ),
    "budget add": ("enter a release in the ledger", "experiments.cli.budget:Add"),
    "audit": ("try to break a claim", "experiments.audit.command:Command"),
    "reproduce": (
        "a figure of a paper, its points and ours",
        "experiments.reproduce.command:Command",
    ),
    "benchmark": (
        "private recommenders beside each other, on several splits",
        "experiments.benchmark.command:Command",
    ),
    "benchmark add": (
        "check results of others, and keep them beside ours",
        "experiments.benchmark.add:Command",
    ),
    "recommend": ("the best unseen items for a user", "experiments.cli.recommend:Command"),
    "predict": ("ratings for pairs of user and item", "experiments.cli.predict:Command"),
    "evaluate": (
        "errors and ranking of a saved model on ratings",
        "experiments.cli.evaluate:Command",
    ),
    "compare": (
        "several mechanisms on the same splits, beside popularity",
        "experiments.cli.compare:Command",
    ),
    "bench": ("time a step or the reading of a file", "experiments.bench.command:Command"),
    "data list": ("the data sets that are known, and where they are", "experiments.cli.data:List"),
    "data check": ("read a data set and report every problem", "experiments.cli.data:Check"),
    "data convert": ("write a data set as csv, tsv or parquet", "experiments.cli.data:Convert"),
    "doctor": ("versions, devices, data, and a self-test", "experiments.cli.doctor:Command"),
    "demo": ("the whole job on generated ratings, in a minute", "experiments.fit.demo:Command"),
    "demo stream": (
        "newcomers in a count sketch that does not grow",
        "experiments.cli.stream:Command",
    ),
}

# A group's name: what its commands do.
GROUPS: dict[str, str] = {
    "epsilon": "prices",
    "budget": "a ledger of releases per data set",
    "benchmark": "private recommenders beside each other, on several splits; also",
    "data": "which ratings there are, what is wrong with them",
    "demo": "the whole job on generated ratings, in a minute; also",
}

ONCE = ("--epsilon", "--delta", "--config")
COMMON_FLAGS = (
    "Defaults stand in brackets. --config FILE.toml reads flags from a file (explicit flags win);"
    " --debug shows the traceback of an error."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code, one of `experiments.cli.console`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _take_flag(words, "--debug")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An ε on a terminal without one must not end a run.
            stream.reconfigure(errors="backslashreplace")
    try:
        refuse_others("accounting", "audits", "experiments")
        code = _dispatch(words)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # every end has one shape
        return console.end(error, debug=debug)
    return code


def _dispatch(words: list[str]) -> int:
    if not words:
        console.say(usage())
        return 2
    if words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"dpmf {version('dpmf-jax')}")
        return 0
    name, rest = _split(words)
    module, command_class = _program(name)
    if name != "bench":  # which times the compiler
        program_cache.keep()
    code = module.run(parse(name, command_class, rest))
    return 0 if code is None else int(code)


def usage() -> str:
    rows = {name: what for name, (what, _) in COMMANDS.items() if " " not in name}
    rows |= {
        group: f"{GROUPS.get(group, '')}: {', '.join(members)}"
        for group, members in _groups().items()
    }
    first = [name.partition(" ")[0] for name in COMMANDS]
    width = max(map(len, rows)) + 2
    lines = [_row(name, rows[name], width) for name in dict.fromkeys(first)]
    return f"""\
usage: dpmf COMMAND [flags]

Private factorisation of a ratings matrix: mechanisms, their prices, and audits of their claims.

{chr(10).join(lines)}

dpmf COMMAND --help lists its flags; --version; --debug shows tracebacks. Start with: dpmf demo"""


def group_usage(group: str) -> str:
    """The commands of a group, one a line."""
    names = [f"{group} {member}" for member in _groups()[group]]
    width = max(map(len, names)) + 2
    lines = [_row(f"dpmf {name}", COMMANDS[name][0], width + 5) for name in names]
    return (
        f"usage: dpmf {group} COMMAND [flags]\n\n{GROUPS.get(group, '')}:\n\n{chr(10).join(lines)}"
    )


def _groups() -> dict[str, list[str]]:
    """The second words of the commands of two words, by the first."""
    groups: dict[str, list[str]] = {}
    for name in COMMANDS:
        group, _, member = name.partition(" ")
        if member:
            groups.setdefault(group, []).append(member)
    return groups


def _row(name: str, what: str, width: int) -> str:
    return textwrap.fill(f"  {name:<{width}}{what}", 110, subsequent_indent=" " * (width + 2))


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or two, and its flags."""
    if " ".join(words[:2]) in COMMANDS:
        return " ".join(words[:2]), words[2:]
    if words[0] in COMMANDS:
        return words[0], words[1:]
    if len(words) == 1 and f"{words[0]} show" in COMMANDS:
        return f"{words[0]} show", []
    if words[0] in _groups():
        return _in_group(words[0], words[1:])
    nearest = difflib.get_close_matches(words[0], [*COMMANDS, *_groups()], n=1)
    raise UsageError(
        f"there is no command `dpmf {words[0]}`",
        fix=f"dpmf {nearest[0]}" if nearest else "dpmf --help lists the commands",
    )


def _in_group(group: str, words: list[str]) -> NoReturn:
    """Ends a command line that names a group and none of its commands."""
    if not words:
        console.say(group_usage(group))
        raise SystemExit(2)
    if words[0] in ("-h", "--help", "help"):
        print(group_usage(group))
        raise SystemExit(0)
    members = _groups()[group]
    if words[0].startswith("-"):
        raise UsageError(
            f"`dpmf {group}` is a group of commands: flags come after one of them,"
            f" {', '.join(members)}",
            fix=shlex.join(["dpmf", group, members[0], *words]),
        )
    nearest = difflib.get_close_matches(words[0], members, n=1) or members
    raise UsageError(
        f"there is no command `dpmf {group} {words[0]}`",
        fix=" or ".join(f"dpmf {group} {name}" for name in nearest),
    )


def _program(name: str) -> tuple[Any, type]:
    module_name, _, class_name = COMMANDS[name][1].partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise RuntimeError(
            f"`dpmf {name}` is in the table of commands, its program {module_name} is not installed"
        ) from error
    return module, getattr(module, class_name)


def parse(name: str, command: type, words: Sequence[str]) -> Any:
    """The command line of one program as its dataclass.

    Flags win over ``--config``, which wins over the defaults.

    Raises:
      UsageError: an unknown flag, a value of the wrong type, a missing argument, a bad settings
        file.
      SystemExit: with code 0, after ``--help``.
    """
    import tyro

    words = list(words)
    _refuse_repeated(words)
    config = _take_value(words, "--config")
    narrowed = getattr(command, "narrowed", None)
    if narrowed:  # the flags depend on --mechanism
        command = narrowed(words, settings.read(Path(config)) if config else {})
    chosen = settings.load(Path(config), command) if config else {}
    defaults = settings.with_defaults(command, chosen, tyro.MISSING)
    if {"-h", "--help"} & set(words):
        from experiments.cli import help as command_help

        print(command_help.text(f"dpmf {name}", command, defaults, COMMON_FLAGS))
        raise SystemExit(0)
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                command,
                args=_pairs_last(words, command),
                prog=f"dpmf {name}",
                default=defaults,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
            )
    except SystemExit as ended:
        if ended.code in (0, None):
            raise
        raise parser_messages.usage_error(said.getvalue(), name) from None


def _pairs_last(words: Sequence[str], command: type) -> list[str]:
    """The words with flags of so many values, such as --rating-range, at the end: the parser would
    take the word behind them for one more value.
    """
    sizes = {}
    for name, hint in typing.get_type_hints(command).items():
        for part in typing.get_args(hint):
            values = typing.get_args(part) if typing.get_origin(part) is tuple else ()
            if values and values[-1] is not Ellipsis:
                sizes[f"--{name.replace('_', '-')}"] = 1 + len(values)
    kept, moved, rest = [], [], list(words)
    while rest:
        size = sizes.get(rest[0], 1)
        ends = (place for place, word in enumerate(rest) if place and word.startswith("--"))
        size = min(size, next(ends, size))
        (moved if rest[0] in sizes else kept).extend(rest[:size])
        del rest[:size]
    return kept + moved


def _take_flag(words: list[str], flag: str) -> bool:
    found = flag in words
    while flag in words:
        words.remove(flag)
    return found


def _take_value(words: list[str], flag: str) -> str | None:
    """Removes ``flag VALUE`` or ``flag=VALUE`` from ``words`` and returns the value."""
    value = None
    for index, word in reversed(list(enumerate(words))):
        if word.startswith(f"{flag}="):
            value = value or word.partition("=")[2]
            del words[index]
        elif word == flag:
            if index + 1 == len(words):
                raise UsageError(f"{flag} needs a value", fix=f"{flag} FILE.toml")
            value = value or words[index + 1]
            del words[index : index + 2]
    return value


def _refuse_repeated(words: Sequence[str]) -> None:
    """Raises: UsageError for a price, or a file of settings, that is given twice.

    Of other flags the last one counts, as in most programs.
    """
    flags = [word.partition("=")[0] for word in words]
    for flag in ONCE:
        if flags.count(flag) > 1:
            raise UsageError(
                f"{flag} is given {flags.count(flag)} times",
                fix=f"give {flag} once: what a release costs must not hang on an order",
            )


def _interrupt(*_: Any) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def entry() -> NoReturn:
    """The console command.

    An interrupted process leaves at once, since XLA may crash at exit when it was stopped in a
    compilation. So does a failed one of several processes, which would wait for the others. What
    asks a process to end (SIGTERM) is heard as Ctrl-C is: the run is saved, and how to go on said.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    code = main()
    if code == console.INTERRUPTED or (code and console.abrupt):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry()
