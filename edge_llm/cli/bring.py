"""A model that is not here: what it is, how large, how long it takes, and after a yes it is downloaded and imported."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from edge_llm.cli.terminal import has_person, note, progress_as
from edge_llm.config import BLOCKS, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.blocks import keeps_blocks
from edge_llm.convert.importer import import_model
from edge_llm.convert.in_memory import room_in_memory
from edge_llm.convert.pace import slowness
from edge_llm.errors import EdgeLLMError, ModelNotFound, StorageError, Unavailable, UsageError
from edge_llm.files import is_folder, shown
from edge_llm.formats.bundle import read_manifest
from edge_llm.formats.bundle_writer import renew_source
from edge_llm.formats.gguf import first_part, is_gguf, missing_part, parts_of
from edge_llm.models.known import names_like, refuse_family
from edge_llm.opening.made_from import imported_from, is_made_from
from edge_llm.opening.resolve import refuse_blocks
from edge_llm.paths import BUILTIN_MODEL_NAME, MAX_NAME, bundle_path, expanded, near_model
from edge_llm.progress import DOWNLOAD, Journey, byte_count, rough_time, whole_seconds
from edge_llm.resources import give_memory_back
from edge_llm.sources.hub_gguf import float_bytes
from edge_llm.sources.hubs import look
from edge_llm.sources.hugging_face import digest_files, stamps_of
from edge_llm.sources.names import default_name
from edge_llm.sources.place import Place, did_you_mean, is_there, named_place, place_of

_PAUSE = 0.5
"""Seconds between looks at an import of another process."""


def find(model: str, missing: EdgeLLMError, *, or_file: bool = False) -> str:
    """The name here of what ``model`` names; ``missing`` says that nothing here is called so.

    ``or_file``: a GGUF file in blocks is laid out.
    """
    place = _place(model, missing)
    if (name := _name_here(model, place) or _unchanged(place)) is not None:
        return name
    if place.folder is not None:
        if or_file and keeps_blocks(place.folder):
            return _take(place)
        raise missing
    raise ModelNotFound(f"`{shown(model)}` is not here; `edge-llm import {shlex.quote(model)}` brings it", model=model)


def bring(model: str, missing: EdgeLLMError, runtime: RuntimeConfig, *, yes: bool, store: bool = True) -> str:
    """The name here of what ``model`` names, brought here if need be; ``missing`` says that nothing here is called so.

    A GGUF file in blocks that stay as they are is taken without a question; where it is not to be in ``store``, it is a path.
    One that the device of ``runtime`` cannot multiply is refused.
    """
    place = _place(model, missing)
    if (found := _name_here(model, place) or _unchanged(place)) is not None:
        return found
    names, older = _names(place), _older(place)
    renews = older is not None
    file = place.folder if place.folder is not None and keeps_blocks(place.folder) else None
    if file is not None:
        refuse_blocks(runtime)
    if not store:
        return _lay_out(model, file, names[0])
    if file is not None:
        try:
            return _take(place)
        except StorageError as error:
            raise StorageError(f"{error}; --no-store lays the file out in memory") from error
    name = older or names[0]
    if is_folder(bundle_path(name)) and not renews:
        raise UsageError(
            f"`{shown(model)}` is not here, and another model is called `{name}` already: `edge-llm import {place} --name "
            "NAME` gives it a name of its own",
            param="model",
        )
    _agree(model, place, yes=yes, renews=renews)
    return _import(place, lambda: name, overwrite=renews)


def _name_here(model: str, place: Place) -> str | None:
    """What is called here that was imported from ``place``, which ``model`` names."""
    for name in _names(place):
        if is_made_from(place, bundle_path(name)):
            return name
    others = imported_from(place)
    if len(others) > 1:
        raise UsageError(f"`{shown(model)}` fits several models here: {_listed(others)}; name one of them", param="model")
    return others[0] if others else None


def _names(place: Place) -> list[str]:
    """What is made of ``place`` is called here; a GGUF file has a second name, for where another model has the first."""
    file = place.folder
    if file is None or not is_gguf(file):
        return [default_name(str(place))]
    mark = hashlib.sha256(os.fsencode(file)).hexdigest()[:8]
    try:
        name = default_name(str(file))
    except UsageError:  # no letter or digit is in it
        return [f"gguf-{mark}"]
    marked = f"{name[: MAX_NAME - 1 - len(mark)]}-{mark}"
    return [marked] if name == BUILTIN_MODEL_NAME else [name, marked]


def _free(place: Place, names: list[str]) -> str:
    """The first of ``names`` that no model of another place has; the last where all are taken."""
    folders = {name: bundle_path(name) for name in names}
    free = (name for name, folder in folders.items() if not is_folder(folder) or is_made_from(place, folder))
    return next(free, names[-1])


def _older(place: Place) -> str | None:
    """The name of what was made of an older state of the folder or file at ``place``."""
    return None if place.folder is None else next((name for name in _names(place) if _is_from_older(place, name)), None)


def _is_from_older(place: Place, name: str) -> bool:
    return is_made_from(place, bundle_path(name), may_be_older=True)


def _unchanged(place: Place) -> str | None:
    """What is called here that was imported from the GGUF file at ``place``, of which only the time is new."""
    if place.folder is None or not is_gguf(place.folder):
        return None
    older = dict.fromkeys([*_names(place), *imported_from(place, may_be_older=True)])
    bundles = {name: bundle_path(name) for name in older if _is_from_older(place, name)}
    if not bundles or not all(map(is_there, parts_of(place.folder))):
        return None
    stamps = stamps_of(parts_of(place.folder))  # first: what changes meanwhile has others
    with progress_as("auto", Journey(None, slowness=slowness)) as draw:
        digest = digest_files(parts_of(place.folder), lambda _, done, total: draw("read", done, total))
    for name, bundle in bundles.items():
        if read_manifest(bundle)["source"].get("digest") == digest:
            with contextlib.suppress(OSError, EdgeLLMError):  # where nothing can be written it is read again the next time
                renew_source(bundle, digest, {"stamps": stamps})
            return name
    return None


def _place(model: str, missing: EdgeLLMError) -> Place:
    """Where ``model`` can be had.  Raises ``missing``, or what is wrong with it."""
    try:
        place = place_of(model) if _is_path(model) else named_place(model)
    except ModelNotFound:
        raise _gone(model) or missing from None
    if place is None or (place.folder is not None and not _may_be_model(place.folder)):
        raise _with_names(model, missing)
    return place


def _gone(model: str) -> ModelNotFound | None:
    """The error for a GGUF file that is gone and of which something was made that is here."""
    path = first_part(expanded(model).absolute())
    names = imported_from(Place(path), may_be_older=True) if _is_path(model) and is_gguf(path) else []
    if not names:
        return None
    return ModelNotFound(
        f"there is no file `{shown(model)}` any more; what was made of it is called {_listed(names)} here", model=model
    )


def _may_be_model(path: Path) -> bool:
    return is_gguf(path) or (path / "config.json").exists()


def _is_path(model: str) -> bool:
    """As `find_bundle` tells paths from names: a name is no file of the working folder."""
    return "/" in model or model.startswith("~") or model in (".", "..")


def _with_names(model: str, missing: EdgeLLMError) -> EdgeLLMError:
    """``missing``, or which short names ``model`` may have meant."""
    if len(model.split()) != 1 or _is_path(model) or is_there(Path(model)):
        return missing
    near = near_model(model)
    if near is None and (refusal := refuse_family(model)) is not None:
        return refusal
    names = [*([near] if near else []), *names_like(model)]
    if names in ([], [near]):  # as `missing` says
        return missing
    return ModelNotFound(
        f"no model `{shown(model)}`; {did_you_mean(names)} `edge-llm list` shows what is here, `edge-llm import SOURCE` adds "
        "one",
        model=model,
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{shown(name)}`" for name in names)


def _agree(model: str, place: Place, *, yes: bool, renews: bool) -> None:
    """Ask whether to bring ``place`` here, unless ``yes`` says so.  Raises `UsageError` where nobody can be asked."""
    can_ask = has_person() and sys.stderr is not None and sys.stderr.isatty()
    if not yes and not can_ask:
        size = f", about {byte_count(place.known.download)}," if place.known else ""
        lacks, what = ("imported yet", "import") if place.folder else ("here", "fetch")
        raise UsageError(
            f"`{shown(model)}`{size} is not {lacks}, and nobody can be asked whether to {what} it: run "
            f"`edge-llm import {shlex.quote(str(place))}{_at(place)}` first, or give --yes",
            param="yes",
        )
    question = _question(model, place, renews)
    if yes:
        note(f"{question} ...")
    elif not click.confirm(question, default=True, err=True):
        note("nothing was fetched")
        raise click.exceptions.Exit(1)


def _question(model: str, place: Place, renews: bool) -> str:
    """`qwen3 is Qwen/Qwen3-0.6B, 1.5 GB, about 2 min: download`."""
    if place.folder is not None:
        held = _held(place.folder)
        why = "has changed since it was imported" if renews else "is not imported yet"
        takes = rough_time(whole_seconds(0, float_bytes(place.folder.name, held)))
        said = f"{shown(model)} {why}, {byte_count(held)}, about {takes}: import"
        return f"{said} again" if renews else said
    if place.known is not None and place.known.gated:
        note(
            f"{place} is gated: its terms are accepted at https://huggingface.co/{place}, and `hf auth login` or HF_TOKEN says "
            "who you are"
        )
    note(f"asking the hub for {place} ...")
    listing = look(place)
    seconds = rough_time(whole_seconds(listing.missing, float_bytes(listing.model, listing.weights_bytes)))
    named = shown(model) if model == str(place) else f"{shown(model)} is {place}{_at(place)}"
    if not listing.missing:
        return f"{named}, already downloaded, about {seconds}: import"
    rest = byte_count(listing.weights_bytes) if listing.missing >= listing.weights_bytes else ""
    size = rest or f"{byte_count(listing.missing)} of {byte_count(listing.weights_bytes)} to go"
    return f"{named}, {size}, about {seconds}: download"


def _held(path: Path) -> int:
    """Bytes of the weights at ``path``.  Raises `InvalidModel` where a part of a GGUF file is missing."""
    if not is_gguf(path):
        return sum(one.stat().st_size for one in path.glob("*.safetensors"))
    parts = parts_of(path)
    if (missing := next((part for part in parts if not is_there(part)), None)) is not None:
        raise missing_part(missing)
    return sum(part.stat().st_size for part in parts)


def _at(place: Place) -> str:
    return f" --revision {shlex.quote(place.revision)}" if place.revision else ""


def _lay_out(model: str, file: Path | None, name: str) -> str:
    """The path of ``file`` in memory.  Raises `UsageError` where there is none, `StorageError` where it has no room."""
    if file is None:
        raise UsageError(f"--no-store is for a GGUF file in blocks, and `{shown(model)}` is not one", param="no_store")
    with progress_as("auto", Journey(None, slowness=slowness)) as draw:
        room = room_in_memory(name)
        try:
            return str(import_model(file, target=room, weights=LayerBits(BLOCKS), progress=draw, notice=note))
        except StorageError as error:
            raise StorageError(f"{str(error).partition(';')[0]}; free some, or leave --no-store out") from error


def _take(place: Place) -> str:
    """Lay out the GGUF file in blocks at ``place``, and return what it is called here."""
    names, older = _names(place), _older(place)
    try:
        return _import(place, lambda: older or _free(place, names), overwrite=older is not None)
    except UsageError as error:
        if error.param != "name":
            raise
        found = older or _free(place, names)
        said = f"what is called `{found}` here cannot be read, or is another model: `edge-llm rm {found}` removes it"
        raise UsageError(said, param="model") from None


def _import(place: Place, name_of: Callable[[], str], *, overwrite: bool) -> str:
    """Import ``place`` under the name that ``name_of`` gives by then, and return it."""
    journey = Journey("int8", slowness=slowness)
    with progress_as("auto", journey) as draw:
        try:
            folder = _when_free(
                name_of,
                partial(
                    import_model,
                    str(place),
                    revision=place.revision,
                    weights=LayerBits(fit=True, or_blocks=True),
                    overwrite=overwrite,
                    progress=draw,
                    notice=note,
                ),
            )
        except KeyboardInterrupt:
            if journey.stage == DOWNLOAD:
                note("what has arrived is kept: the same command goes on from there")
            raise
    give_memory_back()
    note(f"ready: it is called `{folder.name}` here")
    return folder.name


def _when_free(name_of: Callable[[], str], work: Callable[..., Path]) -> Path:
    """What ``work`` imports under a name, which waits while another process imports something of that name."""
    is_told = False
    while True:
        name = name_of()
        try:
            return work(name=name)
        except UsageError:
            if name_of() == name:  # else another process took it in the meantime
                raise
        except Unavailable as busy:
            if not is_told:
                note(f"{busy}; waiting for it ...")
            is_told = True
            time.sleep(_PAUSE)
