"""Import: a float model becomes a bundle, in a few sweeps over its layers.

    digest the source -> tokenizer, template, calibration sequences
    -> survey: the float model on the calibration text: which folds make its channels even, the static scales behind turns
    -> write: embedding, per layer read, fold, turn, fit or round, write; final norm, output -> text files, float copy if wanted
    -> manifest -> rename

At any time about one layer is in memory, beside the embedding while it is quantized.  The bundle grows in a hidden
folder beside its place and appears by a rename, so a half-written one is never visible.  An import that is stopped by
Ctrl-C, a kill or a full disk leaves the folder, with all that it found out; the same import then goes on from there, and
gives the same bytes (`unfinished`).

    path = import_model("~/models/qwen2.5-0.5b", name="qwen")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.calibrate import read_calibration
from edge_llm.convert.choose import Outliers
from edge_llm.convert.job import Job
from edge_llm.convert.keeping import chosen_weights
from edge_llm.convert.target import check_space, existing, refuse_overlap, taken
from edge_llm.convert.unfinished import Unfinished, refuse_second
from edge_llm.errors import UsageError
from edge_llm.formats.leftovers import clear_leftovers, remove_stopped
from edge_llm.kernels.memory import recycled
from edge_llm.paths import BUILTIN_MODEL_NAME, bundle_path
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources import open_source
from edge_llm.sources.lora_places import Wish
from edge_llm.sources.names import default_name


def import_model(
    source: str | Path,
    name: str | None = None,
    *,
    revision: str | None = None,
    lora: Sequence[Wish] = (),
    target: Path | None = None,
    calibration: Path | str | None = None,
    keep_float: bool = False,
    outliers: Outliers | None = None,
    fold: bool = True,
    turn: int | None = None,
    weights: LayerBits | None = None,
    overwrite: bool = False,
    fresh: bool = False,
    progress: StageProgress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Path:
    """Import ``source`` (a Hugging Face folder, a hub id ``org/name``, its page, a short name) and return the bundle's folder.

    name: what the bundle will be called (default: what the source is called).  lora: adapters to merge, in order.  target: a
    folder to write instead of the one that belongs to the name.  calibration: a UTF-8 text to use instead of the built-in one;
    `BY_MODEL`: the float model writes half of it.  keep_float: put the float weights (float16) into the bundle.  outliers:
    what is done about what a static scale cuts off, and where nothing is turned.  fold: make uneven channels even, by factors
    that cancel.  turn: the largest block of channels that is turned, 0: none (default: `MAX_TURN`; 0 where the mode of
    ``outliers`` is full or naive).  weights: how many bits the layers get, and whether INT8 is fitted (default: the blocks of a
    GGUF file that has them, else INT8, rounded; the command fits).  overwrite: replace another model of this name.  fresh: do
    not go on where the same import was stopped.  notice: told a line at a time.

    The same source under the same name again is a quick no-op, or a repair if the bundle was damaged.
    Raises `UsageError` (a name that is taken), `Unavailable` (another import of this name is at work), `ModelNotFound`,
    `InvalidModel`, `UnsupportedModel`, `HubError` or `StorageError`.  What is done stays for the same import after a
    `StorageError` or Ctrl-C; the others leave nothing behind.
    """
    if name == BUILTIN_MODEL_NAME and target is None:
        raise UsageError("`builtin` is the built-in model; choose another `--name`", param="name")
    tell_progress = progress or ignore
    tell = notice or ignore
    weights = weights or LayerBits(or_blocks=True)
    text = read_calibration(calibration, coded=weights.fitted)
    if target is None:
        target = bundle_path(default_name(source, [one.source for one in lora]) if name is None else name)
    target = target.absolute()
    refuse_second(target)  # before the source is downloaded and read
    with open_source(source, revision=revision, progress=tell_progress, notice=tell, lora=lora) as opened:
        refuse_overlap(Path(opened.place), target)
        clear_leftovers(target.parent)
        if fresh:
            remove_stopped(target)
        outliers = outliers or Outliers()
        asked = {"calibration": calibration is not None, "turn": turn is not None, "keep_float": keep_float}
        weights = chosen_weights(opened, weights, outliers, no_fold=not fold, **asked)
        job = Job(opened, text, keep_float, outliers, fold, turn, weights, tell_progress, tell)
        state = existing(target, job.made_by, job.keep_float)
        if not _stays(target, state, overwrite, job):
            _make(target, job, replace=overwrite or state == "damaged")
    return target


def _stays(target: Path, state: str, overwrite: bool, job: Job) -> bool:
    """Whether what is at ``target`` is as good as what ``job`` would make, which is said; refuses another model."""
    if state == "older" and not overwrite:
        job.notice(f"`{target.name}` was imported from this source by an older edge-llm and stays so; `--overwrite` renews it")
        return True
    if state == "same":
        remove_stopped(target)
        job.notice(f"`{target.name}` is already imported from this source; nothing to do")
        job.progress("unchanged", 1, 1)
        return True
    if state == "other" and not overwrite:
        raise taken(target)
    return False


def _make(target: Path, job: Job, *, replace: bool) -> None:
    with Unfinished(target, job.facts, job.notice) as unfinished:
        weights = None if job.kept is None else job.kept.nbytes
        check_space(unfinished.folder, job.decoder, weights, keep_float=job.keep_float, fitted_tokens=job.fitted_tokens)
        with recycled():
            job.write(unfinished.bundle, unfinished.saved)
        job.source.check_unchanged()
        if not unfinished.publish(replace=replace) and existing(target, job.made_by, job.keep_float) != "same":
            raise taken(target)  # where nothing can be locked, another import was faster, with another model
