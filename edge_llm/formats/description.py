"""How a bundle carries the description of its model: kinds of layers, and a pattern that names the kind of each layer.

    {"embedding": {"source": "model.embed_tokens.weight", "rows": 320, "columns": 64},
     "kinds": {"0": [{"kind": "norm", "gain": {...}, ...}, ...]},
     "pattern": ["0", "0"],
     "prefixes": "model.layers.{}.",
     "norm": {"kind": "norm", ...},
     "output": {"kind": "linear", ...},
     "tied": true}

A value that is its field's default is left out, so that a field which comes later says nothing of older bundles.  A kind or a
field that is unknown here comes from a newer version.  What import chooses of linears and heads stands beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import CorruptBundle, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.limits import MAX_LAYERS, MOST
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.models.reading import Reading
from edge_llm.operations.base import Operation
from edge_llm.operations.embedding import Embedding
from edge_llm.operations.kinds import kinds
from edge_llm.operations.layer import Layer

_OPTIONAL = {"cap", "reading"}
_KEYS = {"embedding", "kinds", "pattern", "prefixes", "norm", "output", "tied"}
_KIND = "kind"
_ENDS = ("final_norm", "output")
"""What the gain of the last norm and the output matrix are called in every bundle."""


def encode_description(decoder: Decoder) -> dict[str, Any]:
    """The record of ``decoder`` in a manifest, without what import chooses."""
    names: dict[tuple[Operation, ...], str] = {}
    pattern = [names.setdefault(layer.operations, str(len(names))) for layer in decoder.layers]
    return {
        "embedding": _encoded(decoder.embedding),
        "kinds": {name: [_encoded(operation) for operation in operations] for operations, name in names.items()},
        "pattern": pattern,
        "prefixes": _prefixes(decoder),
        "norm": _encoded(decoder.norm),
        "output": _encoded(decoder.output),
        "tied": decoder.tied,
    } | _encoded_options(decoder)


def _encoded_options(decoder: Decoder) -> dict[str, Any]:
    cap = {"cap": decoder.cap} if decoder.cap else {}
    return cap | ({} if decoder.reading is None else {"reading": _encoded(decoder.reading)})


def _prefixes(decoder: Decoder) -> str:
    """Where the tensors of layers begin in the source, with braces for the layer's number."""
    found = decoder.layers[0].prefix.replace("0", "{}", 1)
    if any(layer.prefix != found.replace("{}", str(index)) for index, layer in enumerate(decoder.layers)):
        raise ValueError(f"the layers' tensors are not numbered like `{decoder.layers[0].prefix}`")
    return found


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_encoded(one) for one in value]
    if not dataclasses.is_dataclass(value):
        return value
    kind: dict[str, Any] = {_KIND: value.KIND} if hasattr(value, "KIND") else {}
    left_out = getattr(value, "CHOSEN", ())
    fields = [field for field in dataclasses.fields(value) if field.name not in left_out]
    said = {field.name: getattr(value, field.name) for field in fields}
    return kind | {field.name: _encoded(said[field.name]) for field in fields if said[field.name] != field.default}


def decode_description(raw: Mapping[str, Any], model: Mapping[str, Any], most_layers: int) -> DescribedConfig:
    """The model that a manifest describes: ``raw`` its decoder, of at most ``most_layers`` layers, ``model`` the rest.

    Raises `CorruptBundle`, and `UnsupportedModel` where a newer edge-llm described it.
    """
    decoder = decode_decoder(raw, most_layers)
    family, context = model.get("family"), model.get("context")
    if set(model) != {"family", "context"} or type(family) is not str or not _is_count(context):
        raise CorruptBundle("`model` in the manifest is not a family and its context")
    return DescribedConfig.of(decoder, family, typing.cast(int, context))


def model_record(config: ModelConfig) -> dict[str, Any]:
    """What the manifest says of a model beside its description."""
    return {"family": config.family, "context": config.context}


def decode_decoder(raw: Mapping[str, Any], most_layers: int = MAX_LAYERS) -> Decoder:
    """The decoder of which ``raw`` is the `encode_description`."""
    if unknown := set(raw) - _KEYS - _OPTIONAL:
        raise _newer(f"says `{shown(min(unknown))}` of its layers")
    kinds_, pattern, prefixes = raw.get("kinds"), raw.get("pattern"), raw.get("prefixes")
    if _KEYS - set(raw) or not isinstance(kinds_, dict) or not isinstance(pattern, list) or type(prefixes) is not str:
        raise CorruptBundle("`description` in the manifest is malformed")
    if not 1 <= len(pattern) <= min(MAX_LAYERS, most_layers) or prefixes.count("{}") != 1 or len(prefixes) > 200:
        raise CorruptBundle("`description` in the manifest has no layers, too many, or no names for them")
    if not all(type(name) is str for name in pattern) or set(pattern) != set(kinds_):
        raise CorruptBundle("the pattern of layers in the manifest does not name its kinds")
    try:
        operations = {name: _operations(value, f"kinds.{name}") for name, value in kinds_.items()}
        whole = Decoder(
            embedding=_decoded(Embedding, raw["embedding"], "embedding"),
            layers=tuple(Layer(prefixes.replace("{}", str(index)), operations[name]) for index, name in enumerate(pattern)),
            norm=_end(raw["norm"], "norm", "norm"),
            output=_end(raw["output"], "output", "linear"),
            tied=_plain(bool, raw["tied"], "tied"),
            cap=_plain(float, raw.get("cap", 0.0), "cap"),
            reading=_decoded(Reading, raw["reading"], "reading") if "reading" in raw else None,
        )
        if (named := (whole.norm.gain.name, whole.output.name)) != _ENDS or whole.cap < 0:
            said = " and ".join(f"`{shown(one)}`" for one in named)
            raise ValueError(f"the last norm and the output matrix are called {said}, the cap is {whole.cap:g}")
    except ValueError as error:
        raise CorruptBundle(f"`description` in the manifest: {error}") from None
    return whole


def _operations(raw: object, where: str) -> tuple[Operation, ...]:
    if not isinstance(raw, list) or not raw:
        raise CorruptBundle(f"`{where}` in the manifest is not a list of operations")
    return tuple(_operation(one, f"{where}[{index}]") for index, one in enumerate(raw))


def _end(raw: object, where: str, kind: str) -> Any:
    """The operation ``where`` behind all layers, which is of one ``kind``."""
    found = _operation(raw, where)
    if kind != found.KIND:
        raise CorruptBundle(f"`{where}` in the manifest is of the kind `{shown(found.KIND)}`, not `{kind}`")
    return found


def _operation(raw: object, where: str) -> Any:
    return _of_kinds(kinds(), raw, where)


def _of_kinds(known: Mapping[str, type], raw: object, where: str) -> Any:
    """The dataclass of the kind that a record names, one of those ``known``."""
    if not isinstance(raw, dict) or type(raw.get(_KIND)) is not str:
        raise CorruptBundle(f"`{where}` in the manifest names no kind")
    kind = known.get(raw[_KIND])
    if kind is None:
        raise _newer(f"has the kind `{shown(raw[_KIND])}` in `{where}`")
    return _decoded(kind, {key: value for key, value in raw.items() if key != _KIND}, where)


def _decoded(kind: type, raw: object, where: str) -> Any:
    """The dataclass ``kind`` of a record."""
    if not isinstance(raw, dict):
        raise CorruptBundle(f"`{where}` in the manifest is not a record")
    hints, left_out = _hints(kind), getattr(kind, "CHOSEN", ())
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in left_out}
    if unknown := set(raw) - set(fields):
        raise _newer(f"says `{shown(min(unknown))}` of `{where}`")
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    if missing := needed - set(raw):
        raise CorruptBundle(f"`{where}` in the manifest lacks `{min(missing)}`")
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in raw.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, raw: object, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        inner = [one for one in typing.get_args(hint) if one is not types.NoneType]
        if raw is None and types.NoneType in typing.get_args(hint):
            return None
        return _value(inner[0], raw, where) if len(inner) == 1 else _of_kinds({one.KIND: one for one in inner}, raw, where)
    if typing.get_origin(hint) is tuple:
        if not isinstance(raw, list):
            raise CorruptBundle(f"`{where}` in the manifest is not a list")
        return tuple(_value(typing.get_args(hint)[0], one, f"{where}[{index}]") for index, one in enumerate(raw))
    return _decoded(typing.cast(type, hint), raw, where) if dataclasses.is_dataclass(hint) else _plain(hint, raw, where)


def _plain(hint: type, raw: object, where: str) -> Any:
    """A word, a truth, a whole number from 0 on or a finite number."""
    good = (
        (hint is str and type(raw) is str and len(raw) <= 1000)
        or (hint is bool and type(raw) is bool)
        or (hint is int and type(raw) is int and 0 <= raw <= MOST)
        or (hint is float and type(raw) in (int, float) and abs(typing.cast(float, raw)) < 1e300)
    )
    if not good:
        raise CorruptBundle(f"`{where}` in the manifest is `{shown(raw)}`, not a valid {hint.__name__}")
    return float(typing.cast(float, raw)) if hint is float else raw


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST


def _newer(what: str) -> UnsupportedModel:
    return UnsupportedModel(f"this model was made by a newer edge-llm: it {what}; upgrade edge-llm, or import the model again")
