"""The only file that knows folders and environment variables.

``EDGE_LLM_HOME`` moves everything (models, history, caches); without it the platform's user data folder is used.
``EDGE_LLM_CONFIG`` names another config file; without it there is one in ``EDGE_LLM_HOME``, or in the user's config folder.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

from edge_llm.errors import ModelNotFound, StorageError, UsageError

BUILTIN_MODEL_NAME = "builtin"
MAX_NAME = 96
"""Characters of a model's name."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")


def home() -> Path:
    """Folder of everything that edge-llm keeps for this user (it may not exist yet).

    Raises `StorageError`, as all of this file's folders do, when something else has its place or nobody may look there.
    """
    chosen = os.environ.get("EDGE_LLM_HOME")
    if chosen:
        folder = expanded(chosen)
        if str(folder).startswith("~"):
            raise StorageError(f"EDGE_LLM_HOME `{chosen}` names no user of this machine; set it to a folder")
        return _possible_folder(folder.absolute())
    from platformdirs import user_data_path

    folder = user_data_path("edge-llm", appauthor=False)
    if not folder.is_absolute():
        raise StorageError("this user has no home folder; set EDGE_LLM_HOME to a folder")
    return _possible_folder(folder)


def expanded(path: str | Path) -> Path:
    """``path`` with `~` and `~user` replaced as in a shell; an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def config_file() -> Path:
    """The person's config file, which need not exist."""
    return named_config_file() or _config_folder() / "config.toml"


def prompts_folder() -> Path:
    """The folder of the person's stored prompts, which need not exist."""
    return _config_folder() / "prompts"


def _config_folder() -> Path:
    if chosen := os.environ.get("EDGE_LLM_HOME"):
        return expanded(chosen).absolute()
    from platformdirs import user_config_path

    return user_config_path("edge-llm", appauthor=False)


def named_config_file() -> Path | None:
    """The config file that the environment names, if it does: one that must be there."""
    chosen = os.environ.get("EDGE_LLM_CONFIG")
    return expanded(chosen).absolute() if chosen else None


def models_folder() -> Path:
    """Folder that holds one bundle folder per imported model."""
    return _possible_folder(home() / "models")


def synthetic_folder() -> Path:
    """Folder of the random models that are measured."""
    return _possible_folder(home() / "synthetic")


def prefix_cache_folder() -> Path:
    """Folder of the keys and values that are kept for the next start: one folder per model inside."""
    return _possible_folder(home() / "prefix-cache")


def selftest_folder() -> Path:
    """Folder of what cards of this machine were measured to do: a report per chip."""
    return _possible_folder(home() / "selftest")


def servers_folder() -> Path:
    """Folder with a file for each server that runs."""
    return _possible_folder(home() / "servers")


def chats_file() -> Path:
    """File that keeps what people said and were told."""
    return home() / "chats.sqlite3"


def _possible_folder(folder: Path) -> Path:
    """``folder`` if it is one or can be made."""
    for path in (folder, *folder.parents):
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if not path.is_symlink():
                continue
            raise StorageError(_no_folder(path)) from None
        except OSError as error:
            raise StorageError(
                f"cannot look into `{path}`: {error.strerror}; check its permissions, or set EDGE_LLM_HOME to another folder"
            ) from None
        if not stat.S_ISDIR(there.st_mode):
            raise StorageError(_no_folder(path))
        break
    return folder


def _no_folder(path: Path) -> str:
    return f"`{path}` is not a folder; move it away, or set EDGE_LLM_HOME to a folder"


def model_folders() -> list[tuple[str, Path]]:
    """Names and folders of the models that are here, the built-in one first; what lies in a folder is not looked at."""
    folder = models_folder()
    try:
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        imported = [(path.name, path) for path in inside if path.name[0] != "." and path.is_dir()]
    except OSError as error:
        raise StorageError(f"cannot list `{folder}`: {error.strerror}; check its permissions") from None
    return [(BUILTIN_MODEL_NAME, builtin_bundle()), *imported]


def imported_models() -> list[str]:
    """Names of the models that were imported, the newest first.  Raises `StorageError` where nobody may look."""
    made = [(_made_at(folder), name) for name, folder in model_folders() if name != BUILTIN_MODEL_NAME]
    return [name for at, name in sorted(made, reverse=True) if at]


def _made_at(folder: Path) -> int:
    """When the bundle in ``folder`` was finished, in nanoseconds; 0 for what is none."""
    try:
        return (folder / "manifest.json").stat().st_mtime_ns
    except OSError:
        return 0


def name_of(bundle: Path) -> str:
    """What the model in the folder ``bundle`` is called."""
    return BUILTIN_MODEL_NAME if bundle == builtin_bundle() else bundle.name


def builtin_bundle() -> Path:
    """The bundle that ships inside the package."""
    return Path(__file__).parent / "builtin"


def safe_name(name: str) -> str:
    """Return ``name`` if it can be a bundle's folder name; a path or an odd character raises `UsageError`."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name[:100]}` cannot be a model name; use up to {MAX_NAME} letters, digits, '.', '_' or '-', "
            "starting with a letter or digit",
            param="name",
        )
    return name


def bundle_path(name: str) -> Path:
    """Folder of the bundle called ``name`` (existing or not)."""
    return models_folder() / safe_name(name)


def find_bundle(model: str | Path | None) -> Path:
    """The bundle folder that ``model`` names: a name given at import, a path to a bundle, or the built-in model.

    A text is a path when it has a slash in it, begins with `~`, or is `.` or `..`; all else is a name, whatever lies in
    the working folder.  Raises `no_such_model`'s errors.
    """
    if model is None or str(model) == BUILTIN_MODEL_NAME:
        return builtin_bundle()
    if _is_prompt(model) or (not _is_path(model) and not _NAME.fullmatch(str(model)) and os.path.lexists(model)):
        raise no_such_model(model)
    folder = expanded(model) if _is_path(model) else bundle_path(str(model))
    if _holds(folder, "manifest.json"):
        return folder if folder.name not in ("", "..") else folder.resolve()  # a bundle is called as its folder is
    raise no_such_model(model)


def no_such_model(model: str | Path) -> ModelNotFound | UsageError:
    """The error for ``model``, which is none that is here, with the way out; `UsageError` where it is a prompt."""
    name = str(model)
    if _is_prompt(model):
        words = " ".join(name.split())
        start = words if len(words) <= 60 else f"{words[:60]}..."
        way_out = f"write `edge-llm run {_model_for_a_prompt()} {_quoted(words)}`"
        return UsageError(f"`{start}` is no model but a prompt; {way_out}", param="model")
    if name.lower().endswith(".gguf") and os.path.lexists(expanded(model)) and not _is_folder(expanded(model)):
        if _leads_nowhere(expanded(model)):
            return ModelNotFound(f"`{name}` is a link that leads to no file; check where it leads", model=name)
        if not _is_path(model):
            here = shlex.quote(f"./{name}")
            said = f"no model is called `{name}`; there is one in the file `{name}` here: write `{here}` to mean it"
            return ModelNotFound(said, model=name)
        return ModelNotFound(f"`{name}` is not imported yet; run `edge-llm import {shlex.quote(name)}` first", model=name)
    if _is_path(model):
        folder = expanded(model)
        if _holds(folder, "config.json"):
            return ModelNotFound(f"`{name}` is not imported yet; run `edge-llm import {name} --name NAME` first", model=name)
        if (file := gguf_file_in(folder)) is not None:
            here = shlex.quote(f"{name.rstrip('/')}/{file}")
            return ModelNotFound(f"no model `{name}`: this folder has GGUF files; name one of them, such as {here}", model=name)
        lacks = "file" if name.lower().endswith(".gguf") else "folder"
        why = "this folder has no manifest.json, as a model has" if _is_folder(folder) else f"there is no such {lacks}"
        return ModelNotFound(f"no model `{name}`: {why}; {_WAYS}", model=name)
    if near := near_model(name):
        return ModelNotFound(f"no model `{name}`; did you mean `{near}`?", model=name)
    if os.path.lexists(name):
        kind = "folder" if Path(name).is_dir() else "file"
        there = f"there is a {kind} `{name}` here: write `./{name}` to mean it"
        return ModelNotFound(f"no model is called `{name}`; {there}", model=name)
    return ModelNotFound(f"no model `{name}`; {_WAYS}", model=name)


def _model_for_a_prompt() -> str:
    """A real model where there is one."""
    try:
        return next(iter(imported_models()), BUILTIN_MODEL_NAME)
    except StorageError:
        return BUILTIN_MODEL_NAME


def _quoted(words: str) -> str:
    """``words`` as one word of a shell, cut where they are long."""
    words = words if len(words) <= _MOST_QUOTED else f"{words[:_MOST_QUOTED]}..."
    return shlex.quote(words) if set(words) & set('"$`\\!') else f'"{words}"'


_MOST_QUOTED = 150
"""Characters of a prompt that a message gives back."""
_WAYS = "`edge-llm list` shows what is here, `edge-llm import SOURCE` adds one"


def near_model(name: str) -> str | None:
    """The model here whose name ``name`` nearly is, whatever its case; None if there is none, or the folder cannot be read."""
    import difflib

    try:
        known = {known.casefold(): known for known, _ in model_folders()}
    except StorageError:
        return None
    near = difflib.get_close_matches(name.casefold(), known, 1)
    return known[near[0]] if near else None


def _is_path(model: str | Path) -> bool:
    return isinstance(model, Path) or os.sep in model or model.startswith("~") or model in (".", "..")


def _is_prompt(model: str | Path) -> bool:
    """Whether ``model`` is words in the place of a model: with spaces between, and no file."""
    return isinstance(model, str) and len(model.split()) > 1 and not os.path.lexists(expanded(model))


def _holds(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except PermissionError as error:
        raise StorageError(f"cannot look into `{folder}`: {error.strerror}; check its permissions") from None
    except OSError:  # a name that no file can have
        return False


def gguf_file_in(folder: Path) -> str | None:
    """The name of the first GGUF file in ``folder``; None where there is none, or nobody may look."""
    try:
        return min((path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf"), default=None)
    except (OSError, ValueError):  # or no folder can be called so
        return None


def _leads_nowhere(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # nobody may look there
        return False


def _is_folder(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:  # a name that no file can have
        return False
