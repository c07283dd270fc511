"""The flags of `vllm serve` in those of `edge-llm serve`."""

from __future__ import annotations

import argparse
import os
import sys


def arguments(model: str, given: list[str], port: int, environment: dict[str, str]) -> list[str]:
    """The arguments of `edge-llm` for those of `vllm serve MODEL`, whose flags without a counterpart are told on stderr."""
    asked, without = _parser().parse_known_args(given)
    if without:
        print(f"no counterpart here: {' '.join(without)}", file=sys.stderr)
    found = ["serve", os.environ["VLLM_STAND_IN_MODEL"], "--port", str(port), "--prefix-cache", "0", "--seed", "0"]
    for name in asked.served_model_name or [model]:
        found += ["--alias", name]
    found += ["--ctx", str(min(asked.max_model_len, 8192))] if asked.max_model_len else []
    for key in [*(asked.api_key or []), *filter(None, [environment.get("VLLM_API_KEY")])]:
        found += ["--api-key", key]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--api-key", nargs="+")
    return parser
