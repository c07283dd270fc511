"""A bundle's manifest: how it is written, and what is checked when it is read.

A manifest carries the CRC32C of its own text and has exactly one spelling, so a change of any byte is found.  Every field
is checked: the tensor table must be the one that the model's shapes give, numbers must be in range, names must be known.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_llm.config import DEFAULT_SCHEME, TABLE_SCHEMES, ModelConfig
from edge_llm.errors import CorruptBundle, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.description import decode_description
from edge_llm.formats.layout import TABLES, TensorRange, tensor_layout
from edge_llm.formats.older import llama_config
from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.pointwise import MAX_TURN, is_turn
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import HeadTurns
from edge_llm.operations.linear import Linear
from edge_llm.schemes import Facts, is_in_blocks, is_known, scheme_of, schemes
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.strict_json import parse_object

FORMAT = "edge-llm-bundle"
VERSION = 5
WITHOUT_BLOCKS = 4
"""The version of bundles that have nothing in blocks, which older programs read, too."""
OLDEST_VERSION = 1
"""Bundles of version 1 name no weight schemes: all linears are `DEFAULT_SCHEME`.  Those of version 2 turn nothing, and those of
version 3 say the numbers of a Llama in place of a description."""
_FIRST_WITH_TURNS = 3
_FIRST_WITH_DESCRIPTION = 4
MANIFEST = "manifest.json"
WEIGHTS = "weights.bin"
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)
"""The files that `text` reads; they have the names of a Hugging Face folder."""
SOURCE_FILES = ("source/config.json", "source/model.safetensors")
"""Float weights in Hugging Face layout, where the import kept them."""
FOLDS = "folds.safetensors"
"""The factors that were folded into every layer (`edge_llm.convert.kept_folds`)."""
_FILES = (*SIDE_FILES, *SOURCE_FILES, FOLDS)

MAX_MANIFEST_BYTES = 64 * 2**20
_KEYS = frozenset(
    ("format", "version", "model", "linears", "tensors", "files", "profile", "source", "created_with", "checksum")
)
_TURNS_KEY = "head_turns"
_DESCRIPTION_KEY = "description"
_LATER_KEYS = {_TURNS_KEY: _FIRST_WITH_TURNS, _DESCRIPTION_KEY: _FIRST_WITH_DESCRIPTION}
"""With the first version that has them."""
_KINDS = {
    "model": dict, _DESCRIPTION_KEY: dict, "linears": dict, "tensors": list, "files": list, "profile": dict, "source": dict,
}  # fmt: skip
_TENSOR_KEYS = frozenset(("name", "dtype", "shape", "offset", "bytes", "crc32c"))


def encode_manifest(fields: Mapping[str, Any]) -> bytes:
    """The only spelling of a manifest: one key or list element per line, and last the checksum of all that precedes."""
    body = _encode_body(fields)
    return body[:-2] + f',\n"checksum": "{crc32c(body):08x}"\n}}\n'.encode()


def _encode_body(fields: Mapping[str, Any]) -> bytes:
    lines = []
    for key, value in fields.items():
        if isinstance(value, list | tuple) and value:
            text = "[\n " + ",\n ".join(_dump(item) for item in value) + "\n]"
        elif isinstance(value, dict) and value:
            text = "{\n " + ",\n ".join(f"{_dump(k)}: {_dump(v)}" for k, v in value.items()) + "\n}"
        else:
            text = _dump(value)
        lines.append(f"{_dump(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}").encode()


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def decode_manifest(text: bytes, path: Path) -> dict[str, Any]:
    """The fields of the manifest ``text`` (from ``path``), its checksum, version and outer shape checked."""
    fields = parse_json(text, path)
    if fields.get("format") != FORMAT:
        raise corrupt(f"`{path}` is not the manifest of an edge-llm bundle")
    if encode_manifest({key: value for key, value in fields.items() if key != "checksum"}) != text:
        raise corrupt(f"`{path}` was changed after it was written (checksum does not match)")
    version = fields.get("version")
    if type(version) is int and version > VERSION:
        raise UnsupportedModel(
            f"`{path.parent}` was made by a newer edge-llm (bundle version `{version}`, this one reads up to "
            f"{VERSION}); upgrade edge-llm, or import the model again"
        )
    if type(version) is not int or not version >= OLDEST_VERSION:
        raise corrupt(f"`{path}` has the bundle version `{version}`, which is invalid")
    keys = _KEYS | {key for key, first in _LATER_KEYS.items() if version >= first}
    if set(fields) != keys:
        odd = ", ".join(f"`{key}`" for key in sorted(keys ^ set(fields)))
        raise corrupt(f"`{path}` has missing or unknown fields: {odd}")
    for key, kind in _KINDS.items():
        if key in keys and not isinstance(fields[key], kind):
            raise corrupt(f"`{key}` in `{path}` is not a {kind.__name__}")
    return fields


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in ``text``; raises `CorruptBundle` for anything else."""
    try:
        return parse_object(text, str(path), error=CorruptBundle)
    except CorruptBundle as error:
        raise corrupt(str(error)) from None


def corrupt(what: str) -> CorruptBundle:
    """The error that says ``what`` is wrong and how to mend it."""
    return CorruptBundle(f"{what}; import the model again with `edge-llm import SOURCE --overwrite`")


def described_model(manifest: Mapping[str, Any]) -> ModelConfig:
    """The model that ``manifest`` describes; every number is checked against its range.

    Bundles before version 4 say the numbers of a Llama.  Each layer has a linear at least.
    """
    most = len(manifest["linears"])
    try:
        if manifest["version"] < _FIRST_WITH_DESCRIPTION:
            return llama_config(manifest["model"], most_layers=most)
        return decode_description(manifest[_DESCRIPTION_KEY], manifest["model"], most_layers=most)
    except CorruptBundle as error:
        raise corrupt(str(error)) from None


def _other_linears() -> CorruptBundle:
    return corrupt("the linears in the manifest are not those of the model")


def linear_schemes(raw: dict[str, Any], decoder: Decoder) -> dict[str, str]:
    """The weight scheme of every linear; ``raw`` must list the model's linears in order, in their shapes.

    An embedding in blocks that is not the output matrix too stands before them.
    """
    linears = decoder.linears()
    if "embedding" in raw and not decoder.tied:
        linears = {"embedding": decoder.table, **linears}
    if list(raw) != list(linears):
        raise _other_linears()
    found: dict[str, str] = {}
    for name, linear in linears.items():
        record = raw[name]
        if not isinstance(record, dict) or not {"rows", "columns"} <= set(record):
            raise corrupt(f"linear `{name}` in the manifest is malformed")
        if (record["rows"], record["columns"]) != (linear.rows, linear.columns):
            raise corrupt(f"linear `{name}` in the manifest does not have the model's shape")
        scheme = record.get("scheme", DEFAULT_SCHEME)
        if not isinstance(scheme, str) or not is_known(scheme):
            raise UnsupportedModel(
                f"linear `{name}` is stored by the weight scheme `{shown(scheme)}`, which this edge-llm does not have "
                f"({', '.join(schemes())}); upgrade edge-llm, or import the model again"
            )
        try:
            scheme_of(dataclasses.replace(linear, scheme=scheme))
        except ValueError:
            raise corrupt(f"linear `{name}` in the manifest has the weight scheme `{scheme}`, which does not suit it") from None
        if name == "output" and scheme not in TABLE_SCHEMES and not is_in_blocks(scheme):
            raise corrupt(f"the output matrix in the manifest has the weight scheme `{scheme}`, which takes layers alone")
        if name == "embedding" and (not is_in_blocks(scheme) or len(record) != 3):
            raise corrupt(f"the embedding in the manifest has the weight scheme `{scheme}`, which is not one of blocks")
        found[name] = scheme
    return found


def turned_as_said(manifest: Mapping[str, Any], decoder: Decoder) -> Decoder:
    """``decoder`` with the turns that ``manifest`` says of its linears and heads."""
    turns = {name: _turn(manifest["linears"][name].get("turn", 0), f"linear `{name}`") for name in decoder.linears()}
    for name, linear in decoder.linears().items():
        if turns[name] and (linear.columns % turns[name] or not is_multiplied_as_int8(linear.scheme)):
            raise corrupt(f"linear `{name}` in the manifest has a turn of `{turns[name]}`, which does not suit it")
    raw = manifest.get(_TURNS_KEY, {})
    if not isinstance(raw, dict) or set(raw) - {"keys", "values"}:
        raise corrupt(f"`{_TURNS_KEY}` in the manifest is malformed")
    heads = HeadTurns(**{name: _turn(turn, f"the {name} of heads") for name, turn in raw.items()})
    if any(one.head_dim % max(1, turn) for one in decoder.attentions for turn in (heads.keys, heads.values)):
        raise corrupt(f"`{_TURNS_KEY}` in the manifest has blocks that do not divide the heads")
    return decoder.with_turns(turns, heads)


def _turn(raw: object, what: str) -> int:
    if type(raw) is not int or not is_turn(raw):
        raise UnsupportedModel(
            f"{what} is turned in blocks of `{shown(raw)}` channels, which this edge-llm does not do "
            f"(powers of two from 2 to {MAX_TURN}); upgrade edge-llm, or import the model again"
        )
    return raw


def linear_record(linear: Linear, facts: Facts) -> dict[str, Any]:
    """The record of ``linear`` in the manifest."""
    turn = {"turn": linear.turn} if linear.turn else {}
    return {"rows": linear.rows, "columns": linear.columns, "scheme": linear.scheme} | turn | dict(facts)


def linear_records(decoder: Decoder, facts: Mapping[str, Facts]) -> dict[str, dict[str, Any]]:
    """The records of all linears of ``decoder``, with what is said of each beside its shape."""
    table = {"embedding": linear_record(decoder.table, {})} if not decoder.tied and is_in_blocks(decoder.table.scheme) else {}
    return table | {name: linear_record(one, facts[name]) for name, one in decoder.linears().items()}


def version_of(decoder: Decoder) -> int:
    """The least version that can say how the weights of ``decoder`` are kept."""
    return VERSION if any(is_in_blocks(one.scheme) for one in (decoder.table, *decoder.linears().values())) else WITHOUT_BLOCKS


def head_turns_record(decoder: Decoder) -> dict[str, int]:
    """What a manifest says of the turns of heads, which all attentions of ``decoder`` share."""
    return dataclasses.asdict(decoder.head_turns)


def linear_facts(raw: dict[str, Any], decoder: Decoder) -> dict[str, Facts]:
    """The facts of every linear of ``decoder`` beside its shape and scheme."""
    facts: dict[str, Facts] = {}
    for name, linear in decoder.linears().items():
        record = {key: value for key, value in raw[name].items() if key not in ("rows", "columns", "scheme", "turn")}
        try:
            facts[name] = scheme_of(linear).facts(record)
        except ValueError as error:
            raise corrupt(f"linear `{name}` in the manifest has {error}") from None
    return facts


def tensor_ranges(raw: list[Any], decoder: Decoder) -> list[TensorRange]:
    """The tensor table; it must equal the one that the model's shapes and its numbers of hot channels give."""
    hot: dict[str, int] = {}
    for record in raw:
        if not isinstance(record, dict) or set(record) - {"pieces"} != _TENSOR_KEYS:
            raise corrupt("the tensor table in the manifest is malformed")
        name, shape = record["name"], record["shape"]
        if isinstance(name, str) and name.endswith(".hot_index"):
            if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
                raise corrupt(f"tensor `{name[:80]}` in the manifest is malformed")
            linear = name.removesuffix(".hot_index")
            hot["output" if linear == "embedding" and decoder.tied else linear] = shape[0]
    shapes = decoder.linears()
    for name, count in hot.items():
        if name in shapes and count > shapes[name].columns:
            raise corrupt(f"linear `{name}` has more hot channels than input channels")
        if name in shapes and count and shapes[name].turn:
            raise corrupt(f"linear `{name}` is turned and has hot channels, which do not go together")
    layout = tensor_layout(decoder, hot)
    if len(layout) != len(raw):
        raise corrupt(f"the manifest lists {len(raw)} tensors, the model has {len(layout)}")
    return [_matching(record, expected) for record, expected in zip(raw, layout, strict=True)]


def _matching(record: dict[str, Any], expected: TensorRange) -> TensorRange:
    checksums = {key: record[key] for key in ("crc32c", "pieces") if key in record}
    crc, pieces = record["crc32c"], record.get("pieces")
    good = record == tensor_record(expected) | checksums and _is_crc(crc)
    if pieces is not None:
        good = good and expected.name in TABLES and isinstance(pieces, list) and len(pieces) == expected.piece_count
        good = good and all(_is_crc(piece) for piece in pieces)
    if not good:
        raise corrupt(f"tensor `{expected.name}` in the manifest has a wrong place, shape or checksum field")
    return dataclasses.replace(expected, crc32c=crc, pieces=tuple(pieces or ()))


def _is_crc(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32


def tensor_record(tensor: TensorRange) -> dict[str, Any]:
    """The record of ``tensor`` in the table."""
    record: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "offset": tensor.offset,
        "bytes": tensor.nbytes,
        "crc32c": tensor.crc32c,
    }
    if tensor.pieces:
        record["pieces"] = list(tensor.pieces)
    return record


def check_files(raw: list[Any]) -> None:
    """Check the table of files beside the weights: names are known and unique, and there is a tokenizer."""
    names: set[str] = set()
    for record in raw:
        if not isinstance(record, dict) or set(record) != {"name", "bytes", "crc32c"}:
            raise corrupt("the file table in the manifest is malformed")
        name = record["name"]
        if name not in _FILES or name in names:
            raise corrupt(f"the manifest lists the file `{str(name)[:80]}`, which is unknown or listed twice")
        if type(record["bytes"]) is not int or type(record["crc32c"]) is not int:
            raise corrupt(f"the file `{name}` in the manifest is malformed")
        names.add(name)
    if "tokenizer.json" not in names:
        raise corrupt("the manifest lists no `tokenizer.json`")


def check_source(raw: dict[str, Any], folder: Path) -> None:
    """Check where the model came from: all strings, and a float source in the bundle or at an absolute path."""
    where = raw.get("float")
    good = {"kind", "path", "digest", "float"} <= set(raw) and all(v is None or type(v) is str for v in raw.values())
    if not good or (where is not None and where != "source" and not Path(where).is_absolute()):
        raise corrupt(f"`source` in the manifest of `{folder}` is malformed")
