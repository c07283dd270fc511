"""Where a published model is that somebody names: a folder here, or a repository of a hub."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edge_llm.errors import EdgeLLMError, ModelNotFound, StorageError, UnsupportedModel, UsageError
from edge_llm.files import shown
from edge_llm.formats.gguf import begins_as_gguf, first_part, is_gguf
from edge_llm.models.known import KnownModel, find_known, names_like, refuse_family
from edge_llm.paths import expanded
from edge_llm.sources.hub_files import is_repository
from edge_llm.sources.hub_gguf import is_model, is_quantization
from edge_llm.sources.modelscope_errors import host as modelscope_host
from edge_llm.sources.modelslim_files import description_of
from edge_llm.sources.refusals import adapter_refusal
from edge_llm.strict_json import read_object

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_HOSTS = ("huggingface.co", "hf.co")
MODELSCOPE = "modelscope"
"""The hub beside Hugging Face's: what stands before `:ORG/NAME` says that it is meant."""
_MODELSCOPE_HOSTS = ("modelscope.cn", "modelscope.ai")
_NO_MODELS = ("datasets", "spaces", "collections", "docs", "papers", "blog", "posts", "models", "settings", "api")
"""What a page's path begins with that is no model's."""
_AT_REVISION = ("tree", "blob", "resolve", "raw", "commit", "commits")
_OF_A_FOLDER = ("config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json")
"""Files that stand for the model whose folder they lie in, beside those of weights."""


@dataclass(frozen=True)
class Place:
    """Either a ``folder`` (or a GGUF file) or a ``repository`` of a hub, at a ``revision`` (None: its main one)."""

    folder: Path | None = None
    repository: str = ""
    revision: str | None = None
    known: KnownModel | None = None
    """What the shipped table says of it."""
    gguf: str = ""
    """The GGUF file of the repository that is meant, by its quantization or its name."""
    hub: str = ""
    """Which hub: `MODELSCOPE`, else Hugging Face's."""

    def __str__(self) -> str:
        """As `edge-llm import` takes it."""
        if self.folder:
            return str(self.folder)
        named = f"{self.repository}:{self.gguf}" if self.gguf else self.repository
        return f"{self.hub}:{named}" if self.hub else named


def place_of(source: str | Path) -> Place:
    """What ``source`` names: a folder, a file of weights in one, a hub id, the address of a page of the hub, or a short name.

    Raises `ModelNotFound`, `UsageError`, `UnsupportedModel` or `StorageError`; nothing is asked of the hub.
    """
    text = str(source)
    if not text.strip():
        raise UsageError("the source is empty; give a Hugging Face folder (`.` is this one) or a hub id", param="source")
    path = expanded(text)
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except PermissionError as error:
        raise StorageError(f"cannot look into `{shown(text)}`: {error.strerror}; check its permissions") from None
    except (OSError, ValueError):  # a name that is too long, or with NUL inside
        raise ModelNotFound(f"no model at `{shown(text)}`; check the path") from None
    if exists:
        return Place(_folder(text, path if is_folder else _folder_of_file(text, path)))
    if isinstance(source, str) and (named := named_place(text)) is not None:
        return named
    if is_gguf(path):
        raise ModelNotFound(f"no file `{shown(text)}`; check the path")
    raise no_source(text)


def no_source(text: str) -> ModelNotFound | UnsupportedModel:
    """The error for ``text``, by which nothing can be had, with the short names that it may have meant."""
    if (refusal := refuse_family(text)) is not None:
        return refusal
    if names := names_like(text):
        return ModelNotFound(f"no model folder and no short name `{shown(text)}`; {did_you_mean(names)}")
    return ModelNotFound(
        f"no model folder `{shown(text)}`; give a Hugging Face folder, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`"
    )


def did_you_mean(names: Sequence[str]) -> str:
    """A question for which of ``names`` was meant."""
    what = "did you mean" if len(names) == 1 else "which of these do you mean:"
    return f"{what} {', '.join(f'`{shown(name)}`' for name in names)}?"


def named_place(text: str) -> Place | None:
    """What ``text`` names if it is no path: the address of a page, an id of a hub or a short name.

    Raises `UsageError` or `UnsupportedModel` for a page that is no model's.
    """
    if (place := _on_modelscope(text) or _page(text)) is not None:
        return place
    if (known := find_known(text)) is not None:
        return Place(None, known.repository, None, known)
    repository, _, wanted = text.partition(":")
    if not _HUB_ID.fullmatch(repository) or (wanted and not (is_quantization(wanted) or is_model(wanted))):
        return None
    return Place(None, repository, gguf=wanted)


def is_there(path: Path) -> bool:
    """Whether there is anything at ``path``."""
    try:
        return path.exists()
    except (OSError, ValueError):  # nobody may look there, or no file can have this name
        return False


def stands_for_folder(path: Path) -> bool:
    """Whether ``path`` is that of a file by which the folder of a model may be named."""
    return path.suffix == ".safetensors" or path.name in _OF_A_FOLDER or description_of([path.name]) is not None


def _folder_of_file(text: str, path: Path) -> Path:
    """The folder of the model that the file ``path`` is a part of; a GGUF file is a model by itself, or its first part is."""
    if is_gguf(path):
        return first_part(path.absolute())
    if stands_for_folder(path):
        return path.parent
    if begins_as_gguf(path):
        link = f"ln -s {shlex.quote(path.name)} {shlex.quote(path.name + '.gguf')}"
        raise UsageError(f"`{shown(text)}` is a GGUF file; give it a name that ends in .gguf, as by `{link}`", param="source")
    raise UsageError(f"`{shown(text)}` is a file; give the folder that holds config.json", param="source")


def _folder(text: str, path: Path) -> Path:
    """``path`` as an absolute one, if a model may lie in it."""
    try:
        is_bundle = (path / "manifest.json").exists() and not (path / "model.safetensors").exists()
        is_adapter = (path / "adapter_config.json").exists() and not (path / "config.json").exists()
    except PermissionError as error:
        raise StorageError(f"cannot look into `{shown(text)}`: {error.strerror}; check its permissions") from None
    if is_bundle:
        raise UsageError(f"`{shown(text)}` is an imported model already; use it by its path or name")
    if is_adapter:
        raise adapter_refusal(text, _base_of(path / "adapter_config.json"))
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"the folder name `{shown(text)}` is not UTF-8; rename it") from None
    return path.absolute()


def _base_of(adapter_config: Path) -> object:
    try:
        return read_object(adapter_config).get("base_model_name_or_path")
    except EdgeLLMError:  # the refusal does without it
        return None


def _on_modelscope(text: str) -> Place | None:
    """The place of ``modelscope:ORG/NAME``, with a GGUF file and ``@REVISION`` or without."""
    hub, _, named = text.strip().partition(":")
    if hub.casefold() != MODELSCOPE:
        return None
    rest, _, revision = named.partition("@")
    repository, _, gguf = rest.partition(":")
    if not is_repository(repository) or (gguf and not (is_quantization(gguf) or is_model(gguf))):
        raise UsageError(
            f"`{shown(text)}` is no model of ModelScope; one looks like `modelscope:Qwen/Qwen3-0.6B`, or with a GGUF file "
            "`modelscope:Qwen/Qwen3-0.6B-GGUF:Q8_0`",
            param="source",
        )
    return Place(None, repository, revision or None, gguf=gguf, hub=MODELSCOPE)


def _page(text: str) -> Place | None:
    """The place of the hub's page whose address is ``text``; None for what is no address."""
    bare = text.strip()
    known = tuple(f"{host}/" for host in (*_HOSTS, *_MODELSCOPE_HOSTS))
    if "://" not in bare and not bare.lower().removeprefix("www.").startswith(known):
        return None
    try:
        address = urlsplit(bare if "://" in bare else f"https://{bare}")
        host = (address.hostname or "").removeprefix("www.")
    except ValueError:
        raise UsageError(f"`{shown(text)}` is no address; give a hub id or a folder", param="source") from None
    parts = [unquote(part) for part in address.path.split("/") if part]
    if address.scheme in ("http", "https") and host in (*_MODELSCOPE_HOSTS, modelscope_host()):
        return _modelscope_page(text, parts)
    if address.scheme not in ("http", "https") or (host not in _HOSTS and host != _own_host()):
        raise UsageError(
            f"`{shown(text)}` is no page of {_HOSTS[0]}, or of the mirror that HF_ENDPOINT names; give a hub id such as "
            "`Qwen/Qwen2.5-0.5B-Instruct`, or a folder",
            param="source",
        )
    repository, _, tag = "/".join(parts[:2]).partition(":")  # as ollama has it
    gguf = tag if is_quantization(tag) else ""
    if len(parts) < 2 or parts[0] in _NO_MODELS or not is_repository(repository):
        raise UsageError(f"`{shown(text)}` is not the page of a model; those are like {_HOSTS[0]}/ORG/NAME", param="source")
    revision, rest = (parts[3], parts[4:]) if len(parts) > 3 and parts[2] in _AT_REVISION else ("main", [])
    if revision == "refs":  # of a pull request or a branch: refs/pr/1
        revision, rest = "/".join(parts[3:6]), parts[6:]
    if is_model("/".join(rest)):
        gguf = "/".join(rest)
    return Place(None, repository, None if revision == "main" else revision, None if gguf else find_known(repository), gguf)


def _modelscope_page(text: str, parts: list[str]) -> Place:
    """The place of a page of ModelScope: models/ORG/NAME, and perhaps file/view/REVISION/FILE or resolve/REVISION/FILE."""
    repository = "/".join(parts[1:3])
    if parts[:1] != ["models"] or not is_repository(repository):
        raise UsageError(
            f"`{shown(text)}` is not the page of a model; those are like {_MODELSCOPE_HOSTS[0]}/models/ORG/NAME", param="source"
        )
    rest = parts[5:] if parts[3:5] == ["file", "view"] else parts[4:] if parts[3:4] == ["resolve"] else []
    revision = rest[0] if rest and rest[0] != "master" else None
    file = "/".join(rest[1:])
    return Place(None, repository, revision, gguf=file if is_model(file) else "", hub=MODELSCOPE)


def _own_host() -> str:
    """Of the mirror that HF_ENDPOINT names."""
    from huggingface_hub import constants  # slow to import

    return urlsplit(constants.ENDPOINT).hostname or ""
