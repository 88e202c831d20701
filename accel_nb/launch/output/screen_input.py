"""Text with control characters and escape sequences (ECMA-48), turned into what they do to a `Screen`."""

from __future__ import annotations

import re

from .screen import MAX_ROWS, Screen

_ERASE_WHOLE_LINE = 2
"""Argument of the control sequence EL."""

_TOKEN = re.compile(
    r"(?P<text>[^\r\n\b\x1b]+)"
    r"|(?P<newline>\r*\n)"
    r"|(?P<carriage_return>\r+)"
    r"|(?P<backspace>\x08)"
    r"|\x1b\[(?P<arguments>[0-?]*)[ -/]*(?P<sequence>[@-~])"
    r"|(?P<ignored>\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-Z\\^-~]|\x1b)"
)


def draw(text: str, screen: Screen, now: float) -> int:
    """Draw `text`, written at `now`, up to its end or to where the screen is idle again; returns how far."""
    screen.set_time(now)
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token is not None
        position = token.end()
        match token.lastgroup:
            case "text":
                screen.put(token.group())
            case "newline":
                screen.newline()
                if screen.idle:
                    break
            case "carriage_return":
                screen.carriage_return()
            case "backspace":
                screen.move_by(-1)
            case "sequence":
                _control(screen, token["sequence"], token["arguments"])
            case _:
                pass  # window titles, character sets, a sequence without its end
    return position


def _control(screen: Screen, final: str, arguments: str) -> None:
    count = int(arguments) if arguments.isdigit() else 0
    match final:
        case "m":
            screen.colour(f"\x1b[{arguments}m")
        case "K":
            screen.erase_line(whole=count == _ERASE_WHOLE_LINE)
        case "J":
            screen.erase_line(whole=False)
            screen.erase_below()
        case "h" | "l" if arguments == "?25":
            screen.show_cursor(shown=final == "h")
        case _:
            _move(screen, final, min(count or 1, 1 << 16))


def _move(screen: Screen, final: str, count: int) -> None:
    match final:
        case "A":
            screen.move_up(min(count, MAX_ROWS))
        case "B":
            for _ in range(min(count, MAX_ROWS)):
                screen.move_down()
        case "C":
            screen.move_by(count)
        case "D":
            screen.move_by(-count)
        case "G":
            screen.carriage_return()
            if count > 1:
                screen.move_by(count - 1)
        case _:
            pass  # absolute positions, modes, scrolling: no progress bar needs them
