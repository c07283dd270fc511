"""What huggingface_hub and its HTTP client raise, in one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from edge_llm.errors import EdgeLLMError, HubError, StorageError
from edge_llm.files import shown


@contextmanager
def clear_errors(repository: str, revision: str | None) -> Iterator[None]:
    """Turn what huggingface_hub and its HTTP client raise into one line that says what to do."""
    try:
        yield
    except EdgeLLMError:
        raise
    except Exception as error:
        raise _clear_error(error, repository, revision) from None


def is_unreachable(error: Exception) -> bool:
    """Whether the hub could not be asked, or could not answer: what it refuses is an answer."""
    if isinstance(error, EdgeLLMError):
        return False
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status >= 500


def _clear_error(error: Exception, repository: str, revision: str | None) -> EdgeLLMError:
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return HubError(
            f"`{repository}` is gated: accept its terms at {endpoint}/{repository}, then log in with `hf auth login` or "
            "set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"`{repository}` has no revision `{shown(revision)}`; see {endpoint}/{repository}/tree/main")
    if isinstance(error, errors.RepositoryNotFoundError):
        return HubError(
            f"no model `{repository}` at {endpoint}, and no such folder here; check the spelling, or log in with "
            "`hf auth login` if it is private"
        )
    if constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled):
        return HubError(
            f"`{repository}` is not completely in the cache `{constants.HF_HUB_CACHE}`, and HF_HUB_OFFLINE forbids to "
            "download it; unset that, or give a folder"
        )
    if status in (401, 403):
        return HubError(
            f"{endpoint} refused access to `{repository}` ({status}): it does not exist or is private; check the "
            "spelling, or log in with `hf auth login`"
        )
    if status is not None:
        return HubError(f"{endpoint} answered {status} for `{repository}`; try again later")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return StorageError(f"cannot write to `{constants.HF_HUB_CACHE}`: {error.strerror}; set HF_HOME to another folder")
    if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
        return HubError(
            f"what {endpoint} answers for `{repository}` is no hub's answer ({reason(error)}); is HF_ENDPOINT right, and does "
            "the network want a login first?"
        )
    return HubError(
        f"cannot download `{repository}` from {endpoint} ({reason(error)}); check the network, or set HF_ENDPOINT to a "
        "mirror; what has arrived is kept, run the command again to go on"
    )


def reason(error: BaseException) -> str:
    """The first line of what caused ``error``."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().splitlines()
    return shown(text[0] if text else type(error).__name__, 100)
