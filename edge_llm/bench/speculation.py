"""What guessing ahead is worth: answers without guesses, with guesses in every step, and with those that pay, in turns.

Questions are answered by the model itself, so the share of right guesses is real.  What prompt lookup is worth depends on how
much an answer copies.  Two texts show the ends: a document rewritten with few changes, and one that is all new.  There a
script says which token comes next, and the model does all its work for real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.concurrency import load_for
from edge_llm.bench.loads import Load
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.decoding.draft import LOOKUP, NO_DRAFT, NO_MODELS, Drafter, no_draft, own_layers, prompt_lookup
from edge_llm.decoding.gain import FIRST, MEASURED, Gain
from edge_llm.decoding.sampler import Choice, Sampler, greedy
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.drafters import OwnLayers
from edge_llm.engine.drafting import Drafting, GroupDrafter
from edge_llm.engine.engine import Engine
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Delta, Finish, Request
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.progress import CountProgress, ignore
from edge_llm.runner.runner import Int8Runner

DOCUMENT = 400
"""Tokens of the document that is to be rewritten."""
CHANGED = 0.05
"""Share of its tokens that the rewriting changes."""
SEED = 7
QUESTIONS = (
    "Explain how a bicycle stays upright.",
    "Write a Python function that returns the most frequent word of a text, and explain it.",
    "Tell a story about a lighthouse keeper and a whale.",
    "List the planets of the solar system with a sentence about each.",
)
WAYS = NONE, ALWAYS, CHOSEN = "none", "always", "chosen"
"""No guesses; some in every step; those that pay."""


@dataclass
class Run:
    """Answers that were computed one after the other."""

    seconds: float = 0.0
    """Behind the first token of each."""
    tokens: int = 0
    """Of that time."""
    sweeps: int = 0
    """Steps of that time."""
    drafted: int = 0
    accepted: int = 0

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Speculation:
    """Decode speeds of one kind of text, the runs of all ways in turns."""

    text: str
    draft: str
    runs: dict[str, list[Run]] = field(default_factory=lambda: {way: [] for way in WAYS})
    pays_from: float | None = None
    """The share of right guesses from which on they pay, by the times that were measured; None: not known, or never."""

    def speed(self, way: str) -> float:
        """The median in tokens per second."""
        return float(np.median([run.per_second for run in self.runs[way]]))

    @property
    def accepted(self) -> float:
        """Share of the guesses that were right where each step had some."""
        drafted = sum(run.drafted for run in self.runs[ALWAYS])
        return sum(run.accepted for run in self.runs[ALWAYS]) / drafted if drafted else 0.0

    def tokens_per_sweep(self, way: str) -> float:
        """Of one answer."""
        return sum(run.tokens for run in self.runs[way]) / sum(run.sweeps for run in self.runs[way])


class Insistent(Gain):
    """Has guesses made in every step, as many as are best, whether they pay or not."""

    def guesses(self, answers: int) -> int:
        if self.sweeps.count(answers) < MEASURED:
            return 0
        return self.least_bad(answers) if self.rounds.count(answers) else FIRST


def check_draft(draft: str, *, synthetic: bool) -> None:
    """Raise `UsageError` where ``draft`` guesses nothing, and for a draft model of a ``synthetic`` model."""
    if draft == NO_DRAFT:
        raise UsageError("--draft none guesses nothing; name lookup, self:N or a MODEL", param="draft")
    if synthetic and draft not in NO_MODELS and own_layers(draft) is None:
        raise UsageError(f"--draft `{shown(draft)}`: a model of random weights has no draft model; try self:N", param="draft")


def load(folder: Path, runtime: RuntimeConfig, n_gen: int, *, synthetic: bool) -> Engine:
    """An engine for `measure` of the bundle ``folder``, with what `runtime.draft` names, which is checked."""
    longest = Load(1, DOCUMENT, max(DOCUMENT, n_gen))
    return load_for(folder, runtime, [longest], synthetic=synthetic, draft=runtime.draft)


def measure(engine: Engine, draft: str, n_gen: int, repetitions: int, tell: CountProgress = ignore) -> list[Speculation]:
    """Every kind of text that shows what ``draft`` is worth, ``repetitions`` times with and without guesses."""
    questions = [_question(engine, question, n_gen) for question in QUESTIONS]
    kinds: dict[str, Callable[[], list[_Answer]]] = {"questions": lambda: questions}
    if draft == LOOKUP:
        random = np.random.default_rng(SEED)
        document = random.integers(0, engine.tokenizer.vocab_size, DOCUMENT)
        fresh = random.integers(0, engine.tokenizer.vocab_size, DOCUMENT)
        rewritten = np.where(random.random(DOCUMENT) < CHANGED, fresh, document)
        texts = {"rewritten": rewritten, "new": fresh}
        kinds = {name: partial(_scripted, document, text) for name, text in texts.items()} | kinds
    measured = []
    for number, (name, answers) in enumerate(kinds.items()):
        measured.append(_measure(engine, name, draft, answers, repetitions, _part(tell, number, len(kinds))))
    return measured


def _part(tell: CountProgress, number: int, parts: int) -> CountProgress:
    return lambda done, total: tell(number * total + done, parts * total)


@dataclass(frozen=True)
class _Answer:
    """What is to be answered, and who chooses its tokens; None: the model."""

    request: Request
    sampler: Sampler | None = None


def _question(engine: Engine, question: str, n_gen: int) -> _Answer:
    params = GenerationParams(max_tokens=n_gen, temperature=0.0, ignore_eos=engine.template.is_default)
    return _Answer(engine.chat_request([{"role": "user", "content": question}], params))


def _scripted(document: np.ndarray, answer: np.ndarray) -> list[_Answer]:
    """An answer to ``document`` whose tokens are those of ``answer``."""
    tokens = iter(answer.tolist())

    def choose(logits: np.ndarray) -> Choice:
        return greedy(logits)._replace(token=next(tokens))  # so that the time of a choice counts

    request = Request(tuple(document.tolist()), GenerationParams(max_tokens=len(answer), ignore_eos=True))
    return [_Answer(request, choose)]


def _measure(
    engine: Engine, name: str, draft: str, answers: Callable[[], list[_Answer]], repetitions: int, tell: CountProgress
) -> Speculation:
    """``answers`` in all ways, after a turn to warm up, in which times are learnt as well."""
    group = _group_drafter(engine, draft)
    draftings = {NONE: Drafting(), ALWAYS: Drafting(group, Insistent()), CHOSEN: Drafting(group)}
    result = Speculation(name, draft)
    for turn in range(repetitions + 1):
        tell(turn, repetitions + 1)
        for way in WAYS if group is not None else (NONE, ALWAYS):
            lookup = draft == LOOKUP and way != NONE
            run = Run()
            for answer in answers():
                _add(run, engine, answer, draftings[way], prompt_lookup() if lookup else no_draft)
            if turn:
                result.runs[way].append(run)
    if group is None:  # guesses of a look into a table are left to answers in every step
        result.runs[CHOSEN].extend(result.runs[ALWAYS])
        return result
    gain = draftings[ALWAYS].gain
    return Speculation(name, draft, result.runs, gain.pays_from(1) if gain.rounds.count(1) else None)


def _group_drafter(engine: Engine, draft: str) -> GroupDrafter | None:
    layers = own_layers(draft)
    if layers is None:
        return engine.batcher.drafting.drafter
    assert isinstance(engine.runner, Int8Runner), "the plan is checked"
    return OwnLayers(engine.runner, layers)


def _add(run: Run, engine: Engine, answer: _Answer, drafting: Drafting, drafter: Drafter) -> None:
    """Compute ``answer`` alone, and add it to ``run``."""
    most = answer.request.params.max_tokens or 0
    generation = Generation(
        answer.request, engine.tokenizer, most_tokens=most, drafter=drafter, sampler=answer.sampler, pool=engine.runner.pool
    )
    batcher = Batcher(engine.runner, Limits(), drafting=drafting)
    batcher.add(generation)
    for finish in _finishes(batcher, generation, run):
        timings, tokens = finish.timings, generation.generated - 1
        run.seconds += 1e-3 * timings.predicted_ms
        run.tokens += tokens
        run.drafted += timings.drafted_tokens
        run.accepted += timings.accepted_tokens


def _finishes(batcher: Batcher, generation: Generation, run: Run) -> Iterator[Finish]:
    """The end of ``generation``, whose steps behind its first token are counted."""
    while batcher.busy:
        run.sweeps += generation.generated > 0
        for _, delta in batcher.step():
            if not isinstance(delta, Delta):
                raise delta
            if delta.finish is not None:
                yield delta.finish


def rows(results: Sequence[Speculation]) -> list[dict[str, Any]]:
    """One row per kind of text."""
    return [
        {
            "text": result.text,
            "draft": result.draft,
            "plain_ts": result.speed(NONE),
            "accepted_share": result.accepted,
            "tokens_per_sweep": result.tokens_per_sweep(ALWAYS),
            "draft_ts": result.speed(ALWAYS),
            "ratio": result.speed(ALWAYS) / result.speed(NONE),
            "pays_from": result.pays_from,
            "chosen_tokens_per_sweep": result.tokens_per_sweep(CHOSEN),
            "chosen_ts": result.speed(CHOSEN),
            "chosen_ratio": result.speed(CHOSEN) / result.speed(NONE),
            **{f"samples_{way}_ts": [run.per_second for run in result.runs[way]] for way in WAYS},
        }
        for result in results
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)


COLUMNS = (
    Column("text", lambda row: row["text"], right=False),
    Column("draft", lambda row: row["draft"], right=False),
    Column("t/s without", lambda row: f"{row['plain_ts']:.1f}"),
    Column("guesses right", lambda row: f"{row['accepted_share']:.0%}"),
    Column("tokens per sweep", lambda row: f"{row['tokens_per_sweep']:.2f}"),
    Column("t/s", lambda row: f"{row['draft_ts']:.1f}"),
    Column("ratio", lambda row: f"{row['ratio']:.2f}x"),
    Column("pays from", lambda row: "" if row["pays_from"] is None else f"{row['pays_from']:.0%} right"),
    Column("t/s where it pays", lambda row: f"{row['chosen_ts']:.1f}"),
    Column("ratio", lambda row: f"{row['chosen_ratio']:.2f}x"),
)
