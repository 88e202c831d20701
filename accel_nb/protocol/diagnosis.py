"""What a look at a machine has found, as data: facts, and what is wrong with what to do about it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Literal

import msgspec

TEXT_CHARS = 110


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is here."""

    group: str
    """``software``, ``machine``, ``devices``, ``this process``, ``settings``, ``self-test``, ``notebook``."""
    name: str
    value: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a user should know."""

    severity: Literal["problem", "hint"]
    """problem: launches fail or hang because of it. hint: it may matter later."""
    what: str
    why: str
    remedy: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Its text is what a notebook shows for it."""

    facts: tuple[Fact, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; hints do not count."""
        return not any(finding.severity == "problem" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """``1 problem, 2 hints``, or that nothing is wrong."""
        counts = {kind: sum(finding.severity == kind for finding in self.findings) for kind in ("problem", "hint")}
        told = [f"{number} {kind}{'s' if number > 1 else ''}" for kind, number in counts.items() if number]
        return ", ".join(told) if counts["problem"] else ", ".join(["nothing is wrong", *told])

    @property
    def groups(self) -> dict[str, list[Fact]]:
        """The facts by group, in their order."""
        found: dict[str, list[Fact]] = {}
        for fact in self.facts:
            found.setdefault(fact.group, []).append(fact)
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        width = max((len(fact.name) for fact in self.facts), default=0)
        for group, facts in self.groups.items():
            yield group
            for fact in facts:
                yield f"  {fact.name:<{width}}  {fact.value}"
        yield ""
        yield self.verdict
        for finding in self.findings:
            yield ""
            yield from textwrap.wrap(f"{finding.severity}: {finding.what}", TEXT_CHARS)
            for label, text in (("why", finding.why), ("do", finding.remedy)):
                yield from textwrap.wrap(
                    text, TEXT_CHARS, initial_indent=f"  {label:<4}", subsequent_indent=" " * 6, break_long_words=False
                )
