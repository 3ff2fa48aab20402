"""Generates the state diagrams in docs/design from the transition tables in the code.

    python .ci/diagrams.py

Each diagram is between `<!-- states: NAME -->` and `<!-- end of states -->`. tests/test_docs.py
fails if a diagram differs from its table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiokprod._engine.buffer import batch_states
from aiokprod._engine.identity import transaction_states
from aiokprod._net import channel_states

DESIGN: Final = Path(__file__).resolve().parent.parent / "docs" / "design"

Edge = tuple[str, str, str]
"""(state, next state, event). The event is "" if the table names none."""


def diagram(initial: str, edges: list[Edge]) -> str:
    """Return a state diagram in Mermaid, which GitHub renders."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {initial}"]
    for before, after, event in edges:
        lines.append(f"    {before} --> {after}" + (f": {event}" if event else ""))
    left = {before for before, _, _ in edges}
    final = dict.fromkeys(after for _, after, _ in edges if after not in left)
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join([*lines, "```"])


def batch() -> str:
    table = batch_states.TRANSITIONS
    edges = [
        (before.name, after.name, "")
        for before in batch_states.BatchState
        for after in batch_states.BatchState
        if after in table[before]
    ]
    return diagram(batch_states.OPEN.name, edges)


def channel() -> str:
    table = channel_states.TRANSITIONS
    edges = [(before.name, after.name, event.name) for (before, event), after in table.items()]
    return diagram(channel_states.State.CONNECTING.name, edges)


def transaction() -> str:
    table = transaction_states.TRANSITIONS
    edges = [
        (before.name, after.name, "")
        for before in transaction_states.TxnState
        for after in transaction_states.TxnState
        if after in table[before]
    ]
    return diagram(transaction_states.TxnState.UNINITIALIZED.name, edges)


PAGES: Final[dict[str, tuple[Callable[[], str], ...]]] = {
    "network.md": (channel,),
    "sender.md": (batch,),
    "transactions.md": (transaction,),
}


def updated(page: str, text: str) -> str:
    """Return the text of a page with newly generated diagrams. Raises `ValueError` if a marker is
    missing."""
    for make in PAGES[page]:
        begin, end = f"<!-- states: {make.__name__} -->\n", "\n<!-- end of states -->"
        if text.count(begin) != 1:
            raise ValueError(
                f"{page}: {text.count(begin)} places for the states of {make.__name__}"
            )
        before, rest = text.split(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page}: no end of the states of {make.__name__}")
        text = before + begin + make() + end + after
    return text


def main() -> None:
    for page in PAGES:
        path = DESIGN / page
        path.write_text(updated(page, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
