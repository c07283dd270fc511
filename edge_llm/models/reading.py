"""How an embedding model makes a vector of a text, as its author trained it: sentence-transformers' pooling and prompts."""

from __future__ import annotations

from dataclasses import dataclass

MEAN, FIRST, LAST = "mean", "cls", "lasttoken"
POOLINGS = (MEAN, FIRST, LAST)


@dataclass(frozen=True)
class Prompt:
    """A text that stands before every text of a kind, such as ``query: ``."""

    name: str
    text: str


@dataclass(frozen=True)
class Reading:
    """What becomes of a text's last hidden states; the vector is made as long as 1."""

    pooling: str = MEAN
    """The mean of all, the first, or the last."""
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    """The name of the prompt that texts get where none is asked for; empty: none."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"the pooling `{self.pooling}`")

    def prompt(self, name: str) -> str | None:
        """The text of the prompt ``name``; None where there is none of that name."""
        return next((one.text for one in self.prompts if one.name == name), None)
