"""What the clients of model hubs raise, in one line that says what to do: one order of causes, each hub in its own words."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from edge_llm.errors import EdgeLLMError, HubError, StorageError
from edge_llm.files import shown

Listing = TypeVar("Listing")


class Cause(Enum):
    """Why a download failed, most telling first."""

    GATED = auto()
    NO_REVISION = auto()
    NO_REPOSITORY = auto()
    OFFLINE = auto()
    """HF_HUB_OFFLINE forbids to ask."""
    REFUSED = auto()
    NOT_FOUND = auto()
    STATUS = auto()
    """Any other."""
    DISK = auto()
    """The cache cannot be written."""
    NO_HUB = auto()
    """What answers is something else."""
    UNREACHABLE = auto()


@dataclass(frozen=True)
class Hub:
    """A hub, and what it says."""

    endpoint: str
    cache: str
    words: Mapping[Cause, str]
    """Texts with {repository}, {revision}, {endpoint}, {cache}, {status} and {reason}.  A cause without one is told as the next
    that fits the error too; STATUS, DISK and those behind it have one."""


@contextmanager
def clear_errors(hub: Hub, repository: str, revision: str | None) -> Iterator[None]:
    """Turn what the client of ``hub`` raises into one line that says what to do: HubError or StorageError."""
    try:
        yield
    except EdgeLLMError:
        raise
    except Exception as error:
        raise _clear_error(hub, error, repository, revision) from None


def when_unreachable(error: Exception, take: Callable[[], Listing]) -> Listing:
    """What ``take`` finds in the cache, where ``error`` means that the hub could not be asked.  Else raises ``error``."""
    if not is_unreachable(error):
        raise error
    try:
        return take()
    except Exception:  # not here either: what keeps it from coming is worth telling
        raise error from None


def _clear_error(hub: Hub, error: Exception, repository: str, revision: str | None) -> EdgeLLMError:
    cause = next(one for one in _causes(error) if one in hub.words)
    facts = {"repository": repository, "revision": shown(revision), "status": _status(error), "reason": reason(error)}
    if cause is Cause.DISK and isinstance(error, OSError):
        facts["reason"] = error.strerror
    text = hub.words[cause].format(endpoint=hub.endpoint, cache=hub.cache, **facts)
    return (StorageError if cause is Cause.DISK else HubError)(text)


def _causes(error: Exception) -> Iterator[Cause]:
    """All that fit, most telling first."""
    from huggingface_hub import constants, errors

    status = _status(error)
    full_or_closed = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
    fits = {
        Cause.GATED: isinstance(error, errors.GatedRepoError),
        Cause.NO_REVISION: isinstance(error, errors.RevisionNotFoundError),
        Cause.NO_REPOSITORY: isinstance(error, errors.RepositoryNotFoundError),
        Cause.OFFLINE: constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled),
        Cause.REFUSED: status in (401, 403),
        Cause.NOT_FOUND: status == 404,
        Cause.STATUS: status is not None,
        Cause.DISK: isinstance(error, OSError) and error.errno in full_or_closed,
        Cause.NO_HUB: isinstance(error, ValueError | KeyError | TypeError | AttributeError),
        Cause.UNREACHABLE: True,
    }
    return (cause for cause in Cause if fits[cause])


def _status(error: Exception) -> int | None:
    """Of the answer that ``error`` is about."""
    return getattr(getattr(error, "response", None), "status_code", None)


def is_unreachable(error: Exception) -> bool:
    """Whether the hub could not be asked, or could not answer: what it refuses is an answer."""
    if isinstance(error, EdgeLLMError):
        return False
    status = _status(error)
    return status is None or status >= 500


def reason(error: BaseException) -> str:
    """The first line of what caused ``error``."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().splitlines()
    return shown(text[0] if text else type(error).__name__, 100)


_HUGGING_FACE = {
    Cause.GATED: "`{repository}` is gated: accept its terms at {endpoint}/{repository}, then log in with `hf auth login` or "
    "set HF_TOKEN",
    Cause.NO_REVISION: "`{repository}` has no revision `{revision}`; see {endpoint}/{repository}/tree/main",
    Cause.NO_REPOSITORY: "no model `{repository}` at {endpoint}, and no such folder here; check the spelling, or log in with "
    "`hf auth login` if it is private",
    Cause.OFFLINE: "`{repository}` is not completely in the cache `{cache}`, and HF_HUB_OFFLINE forbids to download it; unset "
    "that, or give a folder",
    Cause.REFUSED: "{endpoint} refused access to `{repository}` ({status}): it does not exist or is private; check the "
    "spelling, or log in with `hf auth login`",
    Cause.STATUS: "{endpoint} answered {status} for `{repository}`; try again later",
    Cause.DISK: "cannot write to `{cache}`: {reason}; set HF_HOME to another folder",
    Cause.NO_HUB: "what {endpoint} answers for `{repository}` is no hub's answer ({reason}); is HF_ENDPOINT right, and does "
    "the network want a login first?",
    Cause.UNREACHABLE: "cannot download `{repository}` from {endpoint} ({reason}); check the network, or set HF_ENDPOINT to a "
    "mirror; what has arrived is kept, run the command again to go on",
}


def hugging_face() -> Hub:
    """Hugging Face's hub, or the one that HF_ENDPOINT names."""
    from huggingface_hub import constants

    return Hub(constants.ENDPOINT, constants.HF_HUB_CACHE, _HUGGING_FACE)
