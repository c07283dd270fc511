"""How many everyday answers of a model end in a loop: greedy, as the chat samples, as others do.

    python benchmarks/loops.py MODEL                       a model without sampling of its author's own; two minutes for SmolLM2
    python benchmarks/loops.py MODEL --tokens 1000 --seeds 3 --json

Every answer may have so many tokens, without the guard against loops.  It *loops* when it has not come to an end by then, and
half of its last 100 tokens stand in runs of six that it had before; a list that only counts on is such a loop, which the
guard lets pass, because it goes by exact repeats.  *guard* has the answers that the guard would have ended, and *tokens* how
many tokens an answer would have had with it.  Beside that stand what warmth and penalties cost: *facts*, how many of twenty
short questions are answered rightly, and *copied*, how many of ten short texts are repeated as they are when the model is asked
to.  Greedy answers have no seeds: there is one of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from edge_llm.bench.report import Column, table_of
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.decoding.defaults import FOR_CLIENTS, FOR_PEOPLE
from edge_llm.decoding.loops import LoopGuard
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.request import Answer
from edge_llm.engine.service import BatchingService
from edge_llm.opening.load import load_engine
from edge_llm.talk.conversation import conversation_request

QUESTIONS = (
    "What is the capital of France?",
    "Write a poem about autumn",
    "Give me a recipe for pancakes",
    "Explain photosynthesis",
    "Write a Python function that reverses a string",
    "Who was Ada Lovelace?",
    "Tell me a story about a dragon",
    "List ten tips for saving money",
)
TEXTS = (
    "The ship left the harbor at dawn, and the ship came back to the harbor at dusk.",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b",
    "one, two, three, one, two, three, one, two",
    "Name: Ann\nCity: Rome\nName: Bob\nCity: Oslo",
    "The cat sat on the mat. The dog sat on the mat. The bird sat on the mat.",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)",
    '{"id": 1, "x": 0}, {"id": 2, "x": 0}, {"id": 3, "x": 0}',
    "1 0 0 1 0 1 1 0 0 1",
    "Paris is the capital of France. Rome is the capital of Italy. Madrid is the capital of Spain.",
    "To be, or not to be, that is the question.",
)
REPEAT = "Repeat this text exactly:\n"
FACTS: Mapping[str, tuple[str, ...]] = {
    "What is the capital of France?": ("Paris",),
    "What is the capital of Italy?": ("Rome",),
    "What is the capital of Japan?": ("Tokyo",),
    "What is the capital of Spain?": ("Madrid",),
    "What is the capital of Germany?": ("Berlin",),
    "What is the capital of Egypt?": ("Cairo",),
    "Which planet is closest to the sun?": ("Mercury",),
    "Who wrote Romeo and Juliet?": ("Shakespeare",),
    "What gas do plants take in for photosynthesis?": ("carbon dioxide",),
    "What is the largest ocean?": ("Pacific",),
    "What is the chemical symbol of water?": ("H2O",),
    "How many days are in a week?": ("seven", "7"),
    "What is 2 + 2?": ("four", "4"),
    "Who painted the Mona Lisa?": ("Leonardo",),
    "What is the opposite of hot?": ("cold",),
    "What language is spoken in Brazil?": ("Portuguese",),
    "Who discovered gravity?": ("Newton",),
    "What color is the sky on a clear day?": ("blue",),
    "What is the freezing point of water in Celsius?": ("0", "zero"),
    "Which animal is known as man's best friend?": ("dog",),
}
FACT_TOKENS, COPY_TOKENS = 40, 80
_PLAIN = replace(FOR_PEOPLE, dry_multiplier=0.0)
WAYS: Mapping[str, GenerationParams] = {
    "greedy": GenerationParams(),
    "the chat's": FOR_PEOPLE,
    "the chat's, no DRY": _PLAIN,
    "API clients'": FOR_CLIENTS,
    "llama.cpp's": GenerationParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "0.4, min-p 0.05": GenerationParams(temperature=0.4, min_p=0.05),
    "0.7 alone": GenerationParams(temperature=0.7),
    "0.8, top-p 0.95": GenerationParams(temperature=0.8, top_p=0.95),
    "1.0, min-p 0.05": GenerationParams(temperature=1.0, min_p=0.05),
    "no DRY, penalty 1.05": replace(_PLAIN, repetition_penalty=1.05),
    "no DRY, penalty 1.1": replace(_PLAIN, repetition_penalty=1.1),
    "no DRY, frequency 0.1": replace(_PLAIN, frequency_penalty=0.1),
    "DRY with llama.cpp's breakers": replace(FOR_PEOPLE, dry_sequence_breakers=GenerationParams().dry_sequence_breakers),
    "DRY with no breakers": replace(FOR_PEOPLE, dry_sequence_breakers=()),
    "DRY, 4 allowed": replace(FOR_PEOPLE, dry_allowed_length=4),
    "DRY, 8 allowed": replace(FOR_PEOPLE, dry_allowed_length=8),
}
LAST, RUN = 100, 6
"""Tokens that are looked at, and how many in a row make a repeat."""


@dataclass(frozen=True)
class Row:
    """What became of the answers of one way."""

    way: str
    answers: int
    ended: int
    """Came to an end of their own."""
    loops: int
    """Did not, and said what they had said."""
    guarded: int
    """Would have been ended by the guard."""
    tokens: int
    """Of all answers, with the guard."""
    facts: float
    """Share of the questions that were answered rightly."""
    copied: float
    """Share of the texts that were repeated as they are."""

    @property
    def cut(self) -> int:
        """Had more to say when their tokens were used up."""
        return self.answers - self.ended - self.loops


def repeats(tokens: Sequence[int]) -> bool:
    """Whether half of the last tokens stand in runs that the text had before."""
    before: set[tuple[int, ...]] = set()
    said = [False] * len(tokens)
    for at in range(len(tokens) - RUN + 1):
        run = tuple(tokens[at : at + RUN])
        if run in before:
            said[at : at + RUN] = [True] * RUN
        before.add(run)
    return len(tokens) >= LAST and sum(said[-LAST:]) >= LAST // 2


def guarded_tokens(tokens: Sequence[int]) -> int | None:
    """After how many tokens the guard ends the answer."""
    guard = LoopGuard()
    return next((count for count, token in enumerate(tokens, 1) if guard.push(token)), None)


def answers_to(engine: Engine, questions: Sequence[str], params: GenerationParams, seeds: int) -> list[tuple[str, Answer]]:
    """All questions with each seed, side by side, and what is asked."""
    service = BatchingService(engine)
    try:
        answerings = [
            (text, service.submit(conversation_request(engine, [{"role": "user", "content": text}], each)[0]))
            for text in questions
            for each in (replace(params, seed=seed) for seed in range(seeds if params.temperature else 1))
        ]
        return [(text, collect(answering)) for text, answering in answerings]
    finally:
        service.close(drain_seconds=0)


def measure(engine: Engine, way: str, params: GenerationParams, seeds: int, tokens: int) -> Row:
    """What becomes of answers that are sampled as ``params`` have it."""
    params = replace(params, max_tokens=tokens, loop_guard=False)
    answers = [answer for _, answer in answers_to(engine, QUESTIONS, params, seeds)]
    facts = answers_to(engine, [*FACTS], replace(params, max_tokens=FACT_TOKENS), seeds)
    copies = answers_to(engine, [REPEAT + text for text in TEXTS], replace(params, max_tokens=COPY_TOKENS), seeds)
    open_ = [answer.tokens for answer in answers if answer.finish.reason != "stop"]
    ends = [guarded_tokens(answer.tokens) for answer in answers]
    return Row(
        way,
        len(answers),
        len(answers) - len(open_),
        sum(map(repeats, open_)),
        sum(end is not None for end in ends),
        sum(end or len(answer.tokens) for end, answer in zip(ends, answers, strict=True)),
        _share(any(fact.lower() in answer.text.lower() for fact in FACTS[text]) for text, answer in facts),
        _share(text.removeprefix(REPEAT) in answer.text for text, answer in copies),
    )


def _share(found: Iterable[bool]) -> float:
    return statistics.fmean(found)


COLUMNS = (
    Column("sampling", lambda row: row["way"], right=False),
    Column("answers", lambda row: str(row["answers"])),
    Column("ended", lambda row: str(row["ended"])),
    Column("cut", lambda row: str(row["cut"])),
    Column("loops", lambda row: f"{row['loops']} ({row['loops'] / row['answers']:.0%})"),
    Column("guard", lambda row: str(row["guarded"])),
    Column("tokens", lambda row: f"{row['tokens'] / row['answers']:.0f}"),
    Column("facts", lambda row: f"{row['facts']:.0%}"),
    Column("copied", lambda row: f"{row['copied']:.0%}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each way")
    args = parser.parse_args()
    engine = load_engine(args.model, RuntimeConfig(context=args.tokens + 512, kv_tokens=64 * (args.tokens + 512), draft="none"))
    rows = []
    for way, params in WAYS.items():
        row = measure(engine, way, params, args.seeds, args.tokens)
        rows.append(asdict(row) | {"cut": row.cut})
        if args.json:
            print(json.dumps(rows[-1]), flush=True)
    if not args.json:
        print(table_of(rows, COLUMNS))


if __name__ == "__main__":
    main()
