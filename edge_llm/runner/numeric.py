"""What kernels say about numbers that are none, in the tree of errors."""

from __future__ import annotations

from edge_llm import scheduler
from edge_llm.errors import NumericError


class numeric_errors:  # noqa: N801 - reads as a block
    """Turns what kernels say about non-finite activations into the tree's `NumericError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        cause = error.__cause__ if isinstance(error, scheduler.TaskFailed) else error
        if isinstance(cause, ValueError) and "non-finite" in str(cause):
            raise NumericError(f"{cause}: the model's weights or activations left the range of float32") from error
        if isinstance(error, scheduler.TaskFailed) and cause is not None:
            raise cause
