"""Which files of a repository an import needs: of a model, of one GGUF file, or of an adapter.  Nothing is downloaded here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from edge_llm.errors import InvalidModel, UnsupportedModel, UsageError
from edge_llm.files import shown
from edge_llm.formats.model_folder import MAX_INDEX_BYTES, MAX_INDEX_VALUES, MODEL, needed_shards
from edge_llm.models import text_settings
from edge_llm.sources.gguf_families import architectures, refusal
from edge_llm.sources.hub_download import RemoteFile
from edge_llm.sources.hub_gguf import choose, is_only_gguf
from edge_llm.sources.modelslim_files import description_of, files_of, weights_of
from edge_llm.sources.quantization import load_settings, plain_settings
from edge_llm.sources.refusals import adapter_refusal
from edge_llm.sources.sentence_transformers import READING_FILES
from edge_llm.strict_json import parse_object, read_object
from edge_llm.text.template_files import TOOL_USE

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    TOOL_USE,
    *READING_FILES,
)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_TEXTS = ("tokenizer_config.json", "chat_template.jinja", TOOL_USE)
"""What may lie beside an adapter and says how the model is talked to."""
_MAX_NAME = 512
_SINGLE = f"{MODEL}.safetensors"
_INDEX = f"{MODEL}.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5,6}\.safetensors")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


@dataclass(frozen=True)
class Wanted:
    """What of a repository is to come: a model, the GGUF file that is called so, or an adapter."""

    gguf: str = ""
    """A quantization or a file's name; where it is empty, one is chosen of a repository that has GGUF files alone."""
    adapter: bool = False


@dataclass(frozen=True)
class Listing:
    """What a download of a repository brings."""

    commit: str
    files: tuple[RemoteFile, ...]
    folder: Path | None = None
    """Where all of it is already: the hub was not asked, or did not answer."""
    missing: int = 0
    """Bytes that are not here yet."""

    @property
    def weights_bytes(self) -> int:
        return sum(file.size for file in self.files if file.is_weights)

    @property
    def model(self) -> str:
        """The GGUF file, the first where it is split; empty for a folder of Hugging Face's files."""
        return self.files[0].name if self.files and self.files[0].name.lower().endswith(".gguf") else ""


def is_repository(text: str) -> bool:
    """Whether ``text`` can be a hub id."""
    return _REPOSITORY.fullmatch(text) is not None and ".." not in text and "--" not in text


def check_names(repository: str, revision: str | None) -> None:
    """Raise `UsageError` for what can be no id, or no revision."""
    if not is_repository(repository):
        raise UsageError(f"`{shown(repository)}` is not a hub id; one looks like `Qwen/Qwen2.5-0.5B-Instruct`")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"`{shown(revision)}` cannot be a revision; give a branch, a tag or a commit", param="revision")


def needed(
    repository: str,
    present: Mapping[str, RemoteFile],
    wanted: Wanted,
    small_file: Callable[[RemoteFile], bytes],
    base: object = None,
    about_gguf: object = None,
) -> list[RemoteFile]:
    """The files of ``present`` that are ``wanted``; what does not run here is refused before its weights come.

    small_file: gives the bytes of a file.  base: the model that this one was made from, and about_gguf: what a GGUF file has
    inside, as the hub says.
    Raises `UnsupportedModel` or `InvalidModel`.
    """
    if wanted.adapter:
        return [present[name] for name in _adapter(repository, present, wanted.gguf)]
    if wanted.gguf or (is_only_gguf(present) and not description_of(present)):
        _check_family(repository, about_gguf)
        return [present[name] for name in choose(repository, present, wanted.gguf)]
    names = _model(repository, present, base)
    raw = _check_runs(repository, lambda: small_file(present["config.json"]), description_of(present) is not None, base)
    if _INDEX in names and text_settings(raw) is not None:
        index = parse_object(small_file(present[_INDEX]), _INDEX, max_bytes=MAX_INDEX_BYTES, max_values=MAX_INDEX_VALUES)
        shards = _shards_in(index, raw)
        names = [name for name in names if not _SHARD.fullmatch(name) or name in shards]
    return [present[name] for name in names]


def cached(repository: str, folder: Path, commit: str, wanted: Wanted) -> Listing:
    """What an earlier download, ours or another program's, left in ``folder``.

    Raises `FileNotFoundError` where that is not whole, `UnsupportedModel` where another GGUF file is.
    """
    models = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    if wanted.adapter:
        names = _adapter(repository, [path.name for path in folder.iterdir()], wanted.gguf)
    elif wanted.gguf or (is_only_gguf(models) and not any(folder.glob("*.safetensors*"))):
        names = choose(repository, models, wanted.gguf)
    else:
        names = ["config.json", *_weights_in(folder)]
    for name in names:
        if not (folder / name).exists():
            raise FileNotFoundError(folder / name)
    return Listing(commit, tuple(RemoteFile(name, (folder / name).stat().st_size, None) for name in names), folder)


def is_safe_name(name: str) -> bool:
    """Whether the path ``name`` of a repository's file stays in the folder that it is put into."""
    parts = PurePosixPath(name).parts
    return 0 < len(name) <= _MAX_NAME and name.isprintable() and "\\" not in name and not {"..", "/", "//"} & set(parts)


def _model(repository: str, present: Mapping[str, RemoteFile], base: object) -> list[str]:
    names = [name for name in TEXT_FILES if name in present]
    described = description_of(present)
    if _SINGLE in present:
        names.append(_SINGLE)
    elif _INDEX in present:
        names += [_INDEX, *sorted(name for name in present if _SHARD.fullmatch(name))]
    elif not described:
        raise _no_safetensors(repository, list(present), base)
    if described:
        names += [name for name in files_of(present) if name not in names]
    if "config.json" not in present:
        raise UnsupportedModel(f"`{repository}` has no config.json, so it is not a Hugging Face model; try another one")
    return names


def _adapter(repository: str, present: Iterable[str], gguf: str) -> list[str]:
    names = set(present)
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf") and gguf.lower() in name.lower())
    if ADAPTER_CONFIG in names and not gguf:
        if ADAPTER_WEIGHTS not in names:
            raise UnsupportedModel(
                f"`{repository}` has no {ADAPTER_WEIGHTS}: take one that is saved as safetensors; others can run code when "
                "loaded"
            )
        return [ADAPTER_CONFIG, ADAPTER_WEIGHTS, *(name for name in ADAPTER_TEXTS if name in names)]
    if len(ggufs) != 1:
        several = ", ".join(f"`{shown(name)}`" for name in ggufs[:6])
        more = f"; which of these do you mean: {several}?" if several else ": import it without --lora"
        raise UnsupportedModel(f"`{repository}` has no {ADAPTER_CONFIG}, so it is no adapter{more}")
    return ggufs


def _weights_in(folder: Path) -> list[str]:
    here = [path.name for path in folder.iterdir()]
    weights = weights_of(here) if description_of(here) else MODEL
    single, index = f"{weights}.safetensors", folder / f"{weights}.safetensors.index.json"
    if not index.exists() or (folder / single).exists():
        return [single]
    config = folder / "config.json"
    return _shards_in(read_object(index), read_object(config) if config.exists() else {})


def _shards_in(index: Mapping[str, object], config: dict[str, Any]) -> list[str]:
    """The files that a model is read from, as the ``index`` of its weights says."""
    weight_map = index.get("weight_map")
    return sorted(map(str, needed_shards(weight_map, config))) if isinstance(weight_map, dict) else []


def _check_family(repository: str, about: object) -> None:
    """Refuse what does not run before it is downloaded; ``about`` is what the hub says of the files, if it does."""
    family = about.get("architecture") if isinstance(about, dict) else None
    if isinstance(family, str) and family not in architectures():
        raise refusal(f"`{repository}`", family)


def _check_runs(repository: str, config: Callable[[], bytes], described: bool, original: object) -> dict[str, Any]:
    """The config.json of a model, which is refused before its weights are downloaded if it does not run here.

    The refusal is that of an import.

    ``described``: a file of its own says how its weights are quantized.  ``original``: the model that they were made of.
    """
    try:
        raw = parse_object(config(), "config.json")
        load_settings(plain_settings(raw) if described else raw, original)
    except (InvalidModel, UnsupportedModel) as refused:
        raise type(refused)(f"`{repository}` cannot be run here: {refused}") from None
    return raw


def _no_safetensors(repository: str, names: list[str], base: object) -> UnsupportedModel:
    """The error for ``repository``, whose files are ``names``."""
    if "adapter_config.json" in names:
        return adapter_refusal(repository, base)
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        what = "its weights only as `.bin` or `.pt`, which can run code when loaded: take one with safetensors"
    else:
        what = "no model.safetensors: take a repository with a whole language model"
    return UnsupportedModel(f"`{repository}` has {what}")
