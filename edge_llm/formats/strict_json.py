"""The bounded JSON parser, under the name that readers of formats import; see `edge_llm.strict_json`."""

from edge_llm.strict_json import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_json, parse_object, read_object

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_VALUES", "parse_json", "parse_object", "read_object"]
