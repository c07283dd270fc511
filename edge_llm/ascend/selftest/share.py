"""A report of the self-test that its owner can post: figures and versions, nothing that names a person, a machine or a place.

Numbers stay; texts stay without paths, addresses, long numbers and the names of this machine.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge_llm.ascend.npu.pci import small_text
from edge_llm.errors import StorageError
from edge_llm.files import shown, write_whole

Report = Mapping[str, Any]
LEFT_OUT = ("models", "npu-smi", "ascend numa")
"""Findings that are places and nothing else."""
LONGEST_TEXT = 600
SHORTEST_NAME = 3
"""Of those in ASCII; others are shorter."""
NO_NAMES = {"home", "root", "usr", "local", "tmp", "var", "opt", "data", "mnt", "srv", "localhost", "edge-llm", "edge_llm"}
"""Of folders and users on any machine."""
PLACE, NAME, NUMBER = "PATH", "NAME", "NUMBER"
_QUOTED = re.compile(r"""(['"`])(?:(?!\1).)*[/\\](?:(?!\1).)*\1""", re.DOTALL)
_SPACED = re.compile(r"(?<![\w/\\~])(?:[/~]|[A-Za-z]:\\)\S*(?: [^\s/\\]+){0,4}? [^\s/\\]+[/\\]\S*")
"""A path whose folders have spaces in their names: a word with a slash inside follows one that begins a path."""
_RATE = re.compile(r"\(?[A-Za-z]{1,10}/s[,;.)]?")
_DEVICE = re.compile(r"\(?/dev/(?:davinci(?:\d{1,3}|\*|_manager)|devmm_svm|hisi_hdc|svm0|ascend_manager|user_config)[,.:;)]*")
_FLOAT = re.compile(r"-?(?:\d{1,12}\.\d{1,12}|inf|nan)")
_FILE = re.compile(r"(?:lib\w+\.so|\w+\.(?:cpp|h))(?=[:,;.)\d]*$)")
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,}[\w.]*|(?<![\w:])::[0-9a-f]+[\w:.]*|\S+@\S+",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_CODE = re.compile(r"Ascend\w+|ERR\d{5}|0x[0-9a-f]{1,16}", re.IGNORECASE)
_DIGEST = re.compile(r"[0-9a-f]{16,}", re.IGNORECASE)


def shareable(report: Report, names: Iterable[str]) -> dict[str, Any]:
    """What of ``report`` can be posted, on a machine with these ``names``."""
    hide = _Hidden(names)
    machine = {
        name: {"value": hide.text(str(finding.get("value", ""))), "good": finding.get("good")}
        for name, finding in report["machine"].items()
        if name not in LEFT_OUT
    }
    return {
        "version": hide.text(str(report["version"])),
        "day": str(report["when"])[:10],
        "machine": machine,
        "versions": hide.all(report["versions"]),
        "chip": hide.all(report["chip"]),
        "probes": {name: hide.all({key: one for key, one in found.items() if key != "log"})
                   for name, found in report["probes"].items()},
    }  # fmt: skip


def write_share(report: Report, file: Path) -> None:
    """Write to ``file``, in place of an earlier one, what of a report of this machine can be posted.  Raises `StorageError`."""
    text = json.dumps(shareable(report, names_here()), indent=1, ensure_ascii=False)
    try:
        write_whole(file, f"{text}\n".encode(errors="replace"), mode=0o644)
    except OSError as error:
        raise StorageError(f"cannot write the report to `{shown(file)}`: {error.strerror}") from None


class _Hidden:
    """Takes out of texts what points at a person, a machine or a place."""

    def __init__(self, names: Iterable[str]) -> None:
        words = sorted({unicodedata.normalize("NFC", name) for name in names if name}, key=len, reverse=True)
        self._names = re.compile("|".join(map(_name, words)), re.IGNORECASE) if words else None

    def all(self, value: Any) -> Any:
        """``value`` with every text in it hidden; its keys are this program's own words."""
        if isinstance(value, Mapping):
            return {key: self.all(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.all(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        if _FLOAT.fullmatch(text):
            return text
        text = _QUOTED.sub(PLACE, unicodedata.normalize("NFC", text))
        text = _SPACED.sub(lambda found: _spaced(found[0]), text)
        text = re.sub(r"\S*[/\\]\S*", lambda found: _place(found[0]), text)
        if self._names:
            text = self._names.sub(NAME, text)
        text = _ADDRESS.sub(NUMBER, text)
        return _WORD.sub(lambda found: NUMBER if _is_number(found[0]) else found[0], text)[:LONGEST_TEXT]


def _name(name: str) -> str:
    """A pattern for a name: as a word of its own, or anywhere where its script puts no spaces between words."""
    pattern = re.escape(name)
    return rf"(?<![^\W_]){pattern}(?![^\W_])" if name.isascii() else pattern


def _spaced(words: str) -> str:
    last = words.rpartition(" ")[2]
    return words if _RATE.fullmatch(last) else _place(last)


def _place(word: str) -> str:
    """A word with a slash: rates and cards stay, of a path the name of a library or a source file."""
    if _RATE.fullmatch(word) or _DEVICE.fullmatch(word):
        return word
    file = _FILE.match(re.split(r"[/\\]", word)[-1])
    return f"{PLACE} {file[0]}" if file else PLACE


def _is_number(word: str) -> bool:
    """Whether it may be a serial number, a digest or an identity; chips and error codes are not."""
    digits = sum(char.isdigit() for char in word)
    return _DIGEST.fullmatch(word) is not None or (len(word) >= 8 and digits >= 4 and not _CODE.fullmatch(word))


def names_here(environment: Mapping[str, str] | None = None) -> set[str]:
    """Of this machine, of its user, and of the folders that this program was started in and keeps its things in."""
    environment = os.environ if environment is None else environment
    variables = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME")
    told = {platform.node(), small_text(Path("/etc/hostname")), *(environment.get(name, "") for name in variables)}
    with suppress(OSError, KeyError):  # a container's user may have no name
        told.add(getpass.getuser())
    told |= {part for name in told for part in name.split(".")}
    for folder in (environment.get("HOME", ""), environment.get("EDGE_LLM_HOME", ""), environment.get("PWD", "")):
        told |= {word for part in Path(folder).parts for word in (part, *part.split())}
    return {name for name in told if len(name) >= SHORTEST_NAME - (not name.isascii()) and name.lower() not in NO_NAMES}
