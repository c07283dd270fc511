"""Where ModelScope is, and what can go wrong with it, in one line that says what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edge_llm.errors import EdgeLLMError, HubError, StorageError
from edge_llm.files import shown
from edge_llm.sources.hub_errors import reason

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


@contextmanager
def clear_errors(repository: str, revision: str | None, cache: Path) -> Iterator[None]:
    """Turn what the HTTP client raises into one line that says what to do."""
    try:
        yield
    except EdgeLLMError:
        raise
    except Exception as error:
        raise _clear_error(error, repository, revision, cache) from None


def refusal(repository: str, revision: str, answer: Mapping[str, Any]) -> HubError:
    """The error for an ``answer`` that says so itself, whatever its HTTP status was."""
    said = f"{endpoint()} says of `{repository}` at `{shown(revision)}`: `{shown(answer.get('Message') or answer.get('Code'))}`"
    return HubError(f"{said}; check the spelling and the revision, or set MODELSCOPE_API_TOKEN if it is private")


def _clear_error(error: Exception, repository: str, revision: str | None, cache: Path) -> HubError | StorageError:
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled):
        return HubError(
            f"`{repository}` is not completely in `{cache}`, and HF_HUB_OFFLINE forbids to download it; unset that, or give a "
            "folder"
        )
    if status in (401, 403):
        return HubError(
            f"{endpoint()} refused access to `{repository}` ({status}); set MODELSCOPE_API_TOKEN if it is private, or accept "
            "its terms on its page"
        )
    if status == 404:
        return HubError(
            f"no model `{repository}` with the revision `{shown(revision)}` at {endpoint()}; check the spelling, or set "
            "MODELSCOPE_API_TOKEN if it is private"
        )
    if status is not None:
        return HubError(f"{endpoint()} answered {status} for `{repository}`; try again later")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return StorageError(f"cannot write to `{cache}`: {error.strerror}; set MODELSCOPE_CACHE to another folder")
    if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
        return HubError(
            f"what {endpoint()} answers for `{repository}` is not ModelScope's answer ({reason(error)}); is "
            "MODELSCOPE_ENDPOINT right, and does the network want a login first?"
        )
    return HubError(
        f"cannot download `{repository}` from {endpoint()} ({reason(error)}); check the network, or set MODELSCOPE_ENDPOINT; "
        "what has arrived is kept, run the command again to go on"
    )
