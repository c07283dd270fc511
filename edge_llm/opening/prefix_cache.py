"""The prefix cache of one model: an open bundle and a `RuntimeConfig` become an identity and a `PrefixStore`."""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import weakref
from collections.abc import Mapping
from pathlib import Path

from edge_llm.config import RuntimeConfig
from edge_llm.errors import EdgeLLMError, StorageError
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.kv.prefix_store import PrefixStore
from edge_llm.opening.numerics import numerics_version
from edge_llm.paths import name_of, prefix_cache_folder

log = logging.getLogger("edge_llm.engine")


def weights_digest(bundle: Bundle) -> str:
    """SHA-256 of everything in the bundle that decides results: shapes, constants, scales, checksums of the tensors."""
    keys = ("version", "model", "description", "linears", "tensors", "head_turns")
    numbers = {key: bundle.manifest[key] for key in keys if key in bundle.manifest}
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def model_identity(bundle: Bundle, runtime: RuntimeConfig) -> bytes:
    """32 bytes that identify everything that keys and values depend on, except the text.

    That includes the code that computes them, because other code may compute other last bits, and what runs where:
    ``runtime`` names the placement, the scales of activations and, as its device, the `numerics` of the one that was opened.
    """
    facts = {
        "numerics": numerics_version(),
        "weights": weights_digest(bundle),
        "device": runtime.device,
        "placement": runtime.placement,
        "shadow": runtime.shadow,
        "activations": runtime.activations,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def open_prefix_store(bundle: Bundle, runtime: RuntimeConfig, page_bytes: int, budget: int) -> PrefixStore | None:
    """The stored pages of the model, of ``page_bytes`` bytes each; None when there is no place.

    ``budget`` is in bytes, 0 for none; ``runtime`` is that of `model_identity`.  The end of the process waits for its pages.
    """
    if budget == 0:
        return None
    label = {
        "model": name_of(bundle.folder),
        "bundle": str(bundle.folder.absolute()),
        "weights": weights_digest(bundle),
        "numerics": numerics_version(),
    }
    try:
        root = prefix_cache_folder()
    except StorageError as error:
        log.warning("no prefix cache: %s", error)
        return None
    store = PrefixStore(root, model_identity(bundle, runtime), page_bytes, budget, label)
    _OPEN.add(store)
    return store


_OPEN: weakref.WeakSet[PrefixStore] = weakref.WeakSet()


@atexit.register
def _write_what_waits() -> None:
    """A process that answers once and ends (`cli.process.leave`) has hardly begun to write."""
    for store in list(_OPEN):
        store.close()


def is_usable(label: Mapping[str, str]) -> bool:
    """Whether pages with ``label`` can still be used: this code computed them, and their model exists, unchanged."""
    if label.get("numerics") != numerics_version():
        return False
    try:
        with open_bundle(Path(label["bundle"])) as bundle:
            return weights_digest(bundle) == label["weights"]
    except (EdgeLLMError, KeyError):
        return False
