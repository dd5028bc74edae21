"""What the parser of the command line says of a mistake, as what, where and fix."""

import re

from dpmf_jax.errors import UsageError

_KINDS = {"FLOAT": ("a number", "numbers"), "INT": ("a whole number", "whole numbers")}


def usage_error(said: str, name: str) -> UsageError:
    """The parser's framed message as what, where and fix.

    Its sections stand between horizontal or empty lines.
    """
    sections = [[]]
    for line in said.splitlines()[1:]:  # the first line is the frame's title
        text = line.strip("│|╭╮╰╯+ ")
        if text.strip("─-"):
            sections[-1].append(text)
        else:
            sections.append([])
    told = [_plain(" ".join(" ".join(section).split())) for section in sections if section]
    hint = next((part for part in told if part.startswith("Perhaps you meant")), "")
    near = re.search(r"--[\w-]+", hint)
    fix = f"did you mean {near[0]}? dpmf {name} --help" if near else f"dpmf {name} --help"
    return UsageError(
        told[0] if told else "the command line cannot be read", where=f"dpmf {name}", fix=fix
    )


def _plain(said: str) -> str:
    """What the parser said of a flag, in a sentence."""
    said = _sorted_choices(said)
    if said.startswith("Unrecognized options: "):
        words = said.removeprefix("Unrecognized options: ").split(", ")
        flags = [word for word in words if word.startswith("-")]
        return f"there is no flag {flags[0]}" if flags else f"more than is asked for: {words[0]}"
    if found := re.fullmatch(
        r"Error parsing (\S+): no type matching (.+) could be .*\[(.*)\]\.", said
    ):
        flag, kinds, given = found.groups()
        kinds = kinds.strip("{}").split()
        one, several = _KINDS.get(kinds[0], (kinds[0], f"values {kinds[0]}"))
        wanted = one if len(kinds) == 1 else f"{len(kinds)} {several}"
        return f"{flag} takes {wanted}, not {given}"
    if found := re.fullmatch(
        r"invalid choice (.+) for argument '(.+)'\. Expected one of \((.*)\)\.", said
    ):
        given, flag, choices = found.groups()
        choices = choices.replace("'", "")
        return f"{flag} takes one of {choices}, not {given}"
    if found := re.fullmatch(r"Missing value for argument '(.+)'\. Expected (\d+) values\.", said):
        flag, number = found.groups()
        return f"{flag} needs a value" if number == "1" else f"{flag} needs {number} values"
    if found := re.match(r"Missing from dpmf [\w ]+: (\S+)(.*)", said):
        return f"{found[1]} is missing{':' * bool(found[2])}{found[2].removesuffix(' (required)')}"
    return said


def _sorted_choices(said: str) -> str:
    """What the parser said, with the choices of a flag in order and without None.

    The parser keeps them in a set, which has no order.
    """

    def in_order(found: re.Match[str]) -> str:
        return ", ".join(sorted(set(found[0].split(", ")) - {"'None'"}))

    return re.sub(r"'[^',()]+'(, '[^',()]+')+(?=\))", in_order, said)
