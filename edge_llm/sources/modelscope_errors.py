"""Where ModelScope is, and what can go wrong with it, in one line that says what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edge_llm.errors import HubError
from edge_llm.files import shown
from edge_llm.sources.hub_errors import Cause, Hub

DEFAULT_ENDPOINT = "https://www.modelscope.cn"


def endpoint() -> str:
    """The service's address, from MODELSCOPE_ENDPOINT or MODELSCOPE_DOMAIN."""
    found = os.environ.get("MODELSCOPE_ENDPOINT") or os.environ.get("MODELSCOPE_DOMAIN") or DEFAULT_ENDPOINT
    return (found if "://" in found else f"https://{found}").rstrip("/")


def host() -> str:
    """The service's host; empty where the variables name none."""
    try:
        return (urlsplit(endpoint()).hostname or "").removeprefix("www.")
    except ValueError:
        return ""


def refusal(repository: str, revision: str, answer: Mapping[str, Any]) -> HubError:
    """The error for an ``answer`` that says so itself, whatever its HTTP status was."""
    said = f"{endpoint()} says of `{repository}` at `{shown(revision)}`: `{shown(answer.get('Message') or answer.get('Code'))}`"
    return HubError(f"{said}; check the spelling and the revision, or set MODELSCOPE_API_TOKEN if it is private")


_WORDS = {
    Cause.OFFLINE: "`{repository}` is not completely in `{cache}`, and HF_HUB_OFFLINE forbids to download it; unset that, or "
    "give a folder",
    Cause.REFUSED: "{endpoint} refused access to `{repository}` ({status}); set MODELSCOPE_API_TOKEN if it is private, or "
    "accept its terms on its page",
    Cause.NOT_FOUND: "no model `{repository}` with the revision `{revision}` at {endpoint}; check the spelling, or set "
    "MODELSCOPE_API_TOKEN if it is private",
    Cause.STATUS: "{endpoint} answered {status} for `{repository}`; try again later",
    Cause.DISK: "cannot write to `{cache}`: {reason}; set MODELSCOPE_CACHE to another folder",
    Cause.NO_HUB: "what {endpoint} answers for `{repository}` is not ModelScope's answer ({reason}); is "
    "MODELSCOPE_ENDPOINT right, and does the network want a login first?",
    Cause.UNREACHABLE: "cannot download `{repository}` from {endpoint} ({reason}); check the network, or set "
    "MODELSCOPE_ENDPOINT; what has arrived is kept, run the command again to go on",
}


def modelscope(cache: Path) -> Hub:
    """ModelScope, whose files lie in ``cache``."""
    return Hub(endpoint(), str(cache), _WORDS)
