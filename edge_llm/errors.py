"""Every error that edge-llm raises on purpose, as one tree.

A message names the value that was refused and the way out.  Faces print ``error: <message>`` on stderr and exit with
``exit_code``; the REST face sends ``code``.  Asserts are only for what our own code guarantees.

    EdgeLLMError                        exit 1
    ├── UsageError                      exit 2   an option, argument or request field that makes no sense
    │   └── ContextOverflow             exit 2   the prompt has more tokens than the context holds
    ├── ModelNotFound                   exit 1   no such bundle, folder or file
    ├── ResponseNotFound                exit 1   a stored response of a server that is not there (any more)
    ├── UnsupportedModel                exit 1   a well-formed model that this version cannot run
    ├── InvalidModel                    exit 1   a source model file that is malformed, truncated or contradicts itself
    │   └── InvalidTokenizer            exit 1   tokenizer or chat template that cannot be used
    ├── CorruptBundle                   exit 1   an imported bundle whose bytes are not what was written
    ├── HubError                        exit 1   a download that failed or is not possible
    ├── StorageError                    exit 1   the disk refused a read or a write
    ├── OutOfMemory                     exit 1   a budget (pages, bytes) is exhausted
    ├── Overloaded                      exit 1   the queue is full; the same request may succeed later
    ├── Unavailable                     exit 1   a model that still loads, a service that ends, a name or port that another has
    ├── NumericError                    exit 1   not-a-number or infinity where a number is needed
    └── DeviceError                     exit 1   a device is missing, or refused a subgraph
        └── DeviceLost                  exit 1   a device failed in the middle, and computes nothing more
"""

from __future__ import annotations

import errno

TOO_MANY_FILES = "too many files are open; allow more with `ulimit -n`"


def is_too_many_files(failure: BaseException) -> bool:
    """Whether the system had no file descriptor left; `TOO_MANY_FILES` says so."""
    return isinstance(failure, OSError) and failure.errno in (errno.EMFILE, errno.ENFILE)


class EdgeLLMError(Exception):
    """Base of the tree; catch it to catch everything that edge-llm raises on purpose."""

    code = "edge_llm_error"
    exit_code = 1


class UsageError(EdgeLLMError):
    """An option, argument or request field that makes no sense."""

    code = "invalid_value"
    exit_code = 2

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflow(UsageError):
    """The prompt has more tokens than the context holds."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"this model's maximum context length is {context} tokens, but the prompt has "
            f"{'at least ' if at_least else ''}{prompt_tokens}; shorten it, or raise --ctx if the model allows it",
            param="prompt",
        )
        self.prompt_tokens = prompt_tokens
        self.context = context
        self.at_least = at_least


class ModelNotFound(EdgeLLMError):
    """No such bundle, folder or file."""

    code = "model_not_found"

    def __init__(self, message: str, *, model: str | None = None) -> None:
        super().__init__(message)
        self.model = model
        """What was to be a model that is here, as it was written; None where a file or a folder is missing."""


class ResponseNotFound(EdgeLLMError):
    """A stored response of a server that is not there, or not any more."""

    code = "response_not_found"


class UnsupportedModel(EdgeLLMError):
    """A well-formed model that this version cannot run."""

    code = "unsupported_model"


class InvalidModel(EdgeLLMError):
    """A source model file that is malformed, truncated or contradicts itself."""

    code = "invalid_model"


class InvalidTokenizer(InvalidModel):
    """A tokenizer or chat template that cannot be used."""

    code = "invalid_tokenizer"


class CorruptBundle(EdgeLLMError):
    """An imported bundle whose bytes are not what was written."""

    code = "corrupt_bundle"


class HubError(EdgeLLMError):
    """A download that failed or is not possible."""

    code = "hub_error"


class StorageError(EdgeLLMError):
    """The disk refused a read or a write."""

    code = "storage_error"


class OutOfMemory(EdgeLLMError):
    """A budget (pages, bytes) is exhausted."""

    code = "out_of_memory"


class Overloaded(EdgeLLMError):
    """The queue is full; the same request may succeed later."""

    code = "overloaded"


class Unavailable(EdgeLLMError):
    """Not now: a model that still loads, a service that ends, a name or port that another process has."""

    code = "unavailable"


class NumericError(EdgeLLMError):
    """Not-a-number or infinity where a number is needed."""

    code = "numeric_error"


class DeviceError(EdgeLLMError):
    """A device is missing, or refused a subgraph."""

    code = "device_error"


class DeviceLost(DeviceError):
    """A device failed in the middle, and computes nothing more: a model on it runs elsewhere, or not at all."""

    code = "device_lost"

    def __init__(self, device: str, failure: str) -> None:
        super().__init__(f"the device `{device}` failed: {failure}; ask again, or do without it: --device host")
        self.device = device
        self.failure = failure

    def again(self) -> DeviceLost:
        """The same error without its traceback, which holds all that the device held."""
        return DeviceLost(self.device, self.failure)
