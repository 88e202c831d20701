"""``accel-nb completion``: print what makes a shell complete this command's words.

eval "$(accel-nb completion bash)"            in ~/.bashrc; zsh likewise, in ~/.zshrc
accel-nb completion fish | source             in ~/.config/fish/config.fish
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping

from .options import SUGGESTED

SHELLS = ("bash", "zsh", "fish")
_PROG = "accel-nb"
_FOR_ZSH = (
    "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }",
    "autoload -U +X bashcompinit && bashcompinit",
)
"""The second needs the first, which not every ~/.zshrc has run before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(options: argparse.Namespace) -> int:
    """0. The text is made from the parsers, so that it knows what this version knows."""
    from .main import parsers

    _, commands = parsers()
    text = fish_script(commands) if options.shell == "fish" else bash_script(commands, for_zsh=options.shell == "zsh")
    sys.stdout.write(text)
    return 0


def bash_script(commands: Mapping[str, argparse.ArgumentParser], *, for_zsh: bool = False) -> str:
    """A function for ``complete -F``; zsh has a layer for such functions of its own (``bashcompinit``).

    Where it leaves ``COMPREPLY`` empty, the shell offers files: for scripts, and behind options that want some text.
    """
    lines = [*_FOR_ZSH] if for_zsh else []
    lines += [
        "_accel_nb() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" known=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(commands)} --help --version" -- "$word")); return',
        "  fi",
        '  case "${COMP_WORDS[1]} $before" in',
    ]
    for name, parser in commands.items():
        for action in visible(parser):
            if action.option_strings and action.nargs != 0:
                patterns = "|".join(f"'{name} {spelling}'" for spelling in action.option_strings)
                values = values_of(action)
                lines.append(f"    {patterns}) " + (f'known="{" ".join(values)}" ;;' if values else "return ;;"))
    lines += ["  esac", '  if [ -z "$known" ]; then', '    case "${COMP_WORDS[1]}:$word" in']
    for name, parser in commands.items():
        positional = [action for action in visible(parser) if not action.option_strings]
        values = [value for action in positional for value in values_of(action)]
        words = [spelling for action in visible(parser) for spelling in spellings_of(action)]
        wants_text = positional and not values
        lines.append(f'      {name}:{"-" if wants_text else ""}*) known="{" ".join([*words, *values])}" ;;')
    lines += [
        "    esac",
        "  fi",
        '  [ -z "$known" ] || COMPREPLY=($(compgen -W "$known" -- "$word"))',
        "}",
        f"complete -o default -F _accel_nb {_PROG}",
    ]
    return "\n".join(lines) + "\n"


def fish_script(commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """One line for each word."""
    return "\n".join(_fish_lines(commands)) + "\n"


def visible(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What the help shows."""
    return [action for action in parser._actions if action.help is not argparse.SUPPRESS]  # noqa: SLF001  argparse has no other way to list them


def spellings_of(action: argparse.Action) -> list[str]:
    """The long ones that the help shows: one, or ``--debug`` and ``--no-debug``; none of what is no option."""
    return [text for text in action.option_strings if text.startswith("--") and "_" not in text]


def values_of(action: argparse.Action) -> list[str]:
    """What may stand behind an option, as far as it is a list."""
    if action.nargs == 0:
        return []
    return [str(value) for value in action.choices or SUGGESTED.get(action.dest, ())]


def _fish_lines(commands: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in commands.items():
        yield f"complete -c {_PROG} -n __fish_use_subcommand -f -a {name} -d {_quoted(parser.description or '')}"
    for name, parser in commands.items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for action in visible(parser):
            values = values_of(action)
            takes = f" -x -a {_quoted(' '.join(values))}" if values else "" if action.nargs == 0 else " -r"
            told = f" -d {_quoted(_plain_help(action))}"
            for spelling in spellings_of(action):
                yield f"complete -c {_PROG} {condition} -l {spelling.removeprefix('--')}{takes}{told}"
            if values and not action.option_strings:
                yield f"complete -c {_PROG} {condition} -f -a {_quoted(' '.join(values))}{told}"


def _plain_help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%").split("\n")[0]


def _quoted(text: str) -> str:
    """For fish, where a quote inside quotes has a backslash."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
