"""The factors that an import has folded into a model, kept in its bundle for whoever adds to its weights later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edge_llm.convert.layer_folds import no_folds, places
from edge_llm.errors import CorruptBundle, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.manifest import FOLDS
from edge_llm.formats.safetensors import open_safetensors, safetensors_header
from edge_llm.operations.base import Factors
from edge_llm.paths import builtin_bundle

_LARGEST = 1e30


def folds_file(folds: Sequence[Factors]) -> Iterator[bytes | np.ndarray]:
    """The file `FOLDS` of a bundle: ``folds``, those of every layer by place, as ``layers.<number>.<place>``."""
    named = {f"layers.{at}.{place}": factors for at, layer in enumerate(folds) for place, factors in layer.items()}
    yield safetensors_header((name, "F32", factors.shape) for name, factors in named.items())
    for factors in named.values():
        yield np.ascontiguousarray(factors, np.float32).reshape(-1).view(np.uint8)


def read_folds(bundle: Bundle) -> list[Factors]:
    """The factors that were folded into every layer of ``bundle``, by place.

    Raises `UnsupportedModel` for a bundle that was folded and does not say how, `CorruptBundle` for factors of a
    wrong shape or size.
    """
    layers = bundle.decoder.layers
    if bundle.manifest["source"].get("folds", "none") == "none":
        return [no_folds(layer) for layer in layers]
    if not bundle.has_file(FOLDS):
        if bundle.folder == builtin_bundle():
            raise UnsupportedModel("the built-in model takes no adapters; import a model, such as `edge-llm import smollm2`")
        raise UnsupportedModel(
            f"`{shown(bundle.folder.name)}` was imported before adapters could be added to it; import it again with "
            "--overwrite, or merge the adapter: `edge-llm import MODEL --lora FOLDER`"
        )
    bundle.read_file(FOLDS)  # its checksum
    with open_safetensors(bundle.folder / FOLDS) as file:
        found = [{place: file.read(f"layers.{at}.{place}") for place in places(layer)} for at, layer in enumerate(layers)]
    for layer, factors in zip(layers, found, strict=True):
        for name, place in places(layer).items():
            good = factors[name].shape == place.shape and bool(((factors[name] > 0) & (factors[name] < _LARGEST)).all())
            if not good:
                damaged = shown(bundle.folder / FOLDS)
                raise CorruptBundle(f"`{damaged}` has factors of a wrong shape or size; import the model again")
    return [dict(factors) for factors in found]
