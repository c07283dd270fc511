"""Print the conformance table: one row for every server test whose docstring is "client | endpoint | what holds".

python assets/conformance.py            print it
python assets/conformance.py --write    write docs/conformance.md
"""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
HEAD = """# What the server does, and the test that says so

Made by `python assets/conformance.py --write` from the tests of `edge-llm serve`; every row is a test that runs the named
client, unmodified, against a real server with the built-in model. HTTP means plain requests.

What would change the answer and cannot be honoured is a 400 that names the field: `audio`, `modalities` other than text,
images, `prediction`, `web_search_options`, `store: true` of chat completions, `background`, `suffix` of a
model that fills no gaps, `best_of` other than `n`, `dimensions` other than the model's, and grammars that cannot be
followed. What is accepted without effect is named in `x-edge-llm-ignored`.

Responses are kept in memory unless `store` is false: 1,000 of them and 32 MiB, the longest unused go first.
`previous_response_id` and `item_reference` go on with one that is kept; whether one is, `GET /v1/responses/{id}` says.
A restart forgets all of them.

Tools that are no functions are left out and named there (`tools.web_search`); a custom tool is a function of one text, and its
call comes back as the API has it. Anthropic's `bash` and `text_editor`, which clients run, have their known schemas. A picture
in the result of a tool becomes `[picture left out]` and is named once (`messages.content.image`); one in a question is a 400.
What was thought before the last question is shown again by chat completions only, whose templates decide.

Evaluations by log-likelihood (lm-eval's `local-completions`, with the tokenizer of the server or its own) work: `echo` with
`logprobs` tells of the prompt's tokens too, `max_tokens: 0` of them alone. The token itself stands first among its likely ones.

A thought ends at its budget, and the answer follows: `thinking.budget_tokens`, `reasoning.max_tokens`, `thinking_token_budget`,
`thinking_budget` or `reasoning_budget`, whatever the template knows. `reasoning_effort` low and medium are 1,024 and 4,096
tokens where the template has no levels of its own. The closing mark is counted in `reasoning_tokens`.

The prompt of `/v1/completions` is its writer's own program: control tokens that it spells are parsed, and it gets no second
bos. `parse_special: false` makes them text, `add_special_tokens: false` leaves out the bos, and `skip_special_tokens: false`
shows the control tokens of an answer, on every endpoint.

A field of sampling that a request leaves out has the value that the model's author names (`generation_config.json`), as with
vLLM; where the author names none, it has OpenAI's: `temperature` and `top_p` are 1. The chat and `edge-llm run` are cooler
there (0.7, min-p 0.05 and DRY): people read them, while a client was written for an API that says what an absent field means.
`GET /props` has what holds.

An answer that says the same over and over is ended: a period of up to 512 tokens, four times, and 200 tokens at least. Its
reason is that of a limit of tokens (`finish_reason: "length"`, `stop_reason: "max_tokens"`, `status: "incomplete"`): it is not
complete, it would have ended there, and a new word would break clients that know a fixed list. Beside it stands `stopped_by:
"repetition"`: in the choice, in Anthropic's message or `message_delta.delta`, in the response. `loop_guard: false` turns that
off; so do a grammar, a forced form of the answer, and `ignore_eos`.

llama.cpp's own paths (`/completion`, `/infill`, `/slots`, and what stands here without /v1) answer in its shape and words.
`/completions` without /v1 is its completion, too; a body that names a `model`, as OpenAI's clients must, and has no field that
is llama.cpp's alone gets OpenAI's. Documents are ranked (`/v1/rerank`) by the score of a reranker, by the
cosine of an embedding model's vectors, or by how sure any other model is that the document answers the query. Gaps (`/infill`)
need a model whose tokenizer has tokens for them.

Ollama's API is below /api, on the same port: `/api/chat`, `generate`, `embed`, `embeddings`, `tags`, `show`, `ps`, `version`,
`pull`, `copy` and `delete`. `create`, `push` and `blobs` are a 501, `template` and images a 400; `suffix` needs a model with
tokens for gaps. A field of sampling that `options` leave out has the value of `GET /props`, not Ollama's. `num_ctx` ends an
answer; it makes no context longer. A conversation that does not fit loses its oldest turns (`messages.oldest`), unless
`truncate` is false.

"""
TABLE = """| client | endpoint | what holds | test |
|---|---|---|---|
"""
LLAMA_CPP = ROOT / "tests" / "llama_cpp_suite" / "results.json"
VLLM = ROOT / "tests" / "vllm_suite" / "results.json"


def conformance_page() -> str:
    """The whole page."""
    rows = "".join(f"| {client} | {endpoint} | {claim} | `{test}` |\n" for client, endpoint, claim, test in sorted(_rows()))
    return HEAD + _llama_cpp() + _vllm() + TABLE + rows


def _llama_cpp() -> str:
    """How many of llama.cpp's own tests pass, and why the others do not, as `tests/llama_cpp_suite/run.py` found."""
    found = json.loads(LLAMA_CPP.read_text())
    passed, total = len(found["passed"]), found["total"]
    head = (
        f"{passed} of llama.cpp's {total} own server tests pass: those of {found['package']} that are not slow, unmodified,\n"
        "with stories260k in place of every model. `python tests/llama_cpp_suite/run.py` runs them and says which are lost.\n"
        "The others:\n\n"
    )
    return head + _reasons(found["others"])


def _vllm() -> str:
    """The same of vLLM's, as `tests/vllm_suite/run.py` found."""
    found = json.loads(VLLM.read_text())
    files: defaultdict[str, int] = defaultdict(int)
    for name in found["passed"]:
        files[name.partition("::")[0]] += 1
    counts = ", ".join(f"{_short(name)} {files[name]} of {all_}" for name, all_ in found["files"].items())
    passed, total, package = len(found["passed"]), found["total"], found["package"]
    text = (
        f"{passed} of {total} of {package}'s own tests of its endpoints pass: the files that ask a server for text and "
        "need little of vLLM itself, unmodified, with SmolLM2-135M-Instruct in place of every model "
        f"(`python tests/vllm_suite/run.py`). By file: {counts}. The others:"
    )
    return textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False) + "\n\n" + _reasons(found["others"])


def _short(name: str) -> str:
    """`chat_completion/chat` of `openai/chat_completion/test_chat.py`."""
    return f"{Path(name).parent.name}/{Path(name).stem.removeprefix('test_')}"


def _reasons(others: dict[str, int]) -> str:
    """A table of why tests do not pass."""
    rows = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    return "| reason | tests |\n|---|---:|\n" + "".join(f"| {reason} | {count} |\n" for reason, count in rows) + "\n"


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for path in sorted((ROOT / "tests").glob("test_server_*.py")):
        for node in ast.parse(path.read_text()).body:
            parts = (ast.get_docstring(node) or "").split(" | ") if isinstance(node, ast.FunctionDef) else []
            if len(parts) == 3:
                yield parts[0], parts[1], parts[2], f"{path.stem}::{node.name}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(conformance_page())
    else:
        print(conformance_page())
