"""Texts in Lark's syntax."""

from __future__ import annotations

import json


def quoted(text: str) -> str:
    """``text`` as a Lark string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the library takes no control character
