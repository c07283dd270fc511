"""All the text the built-in model is trained and measured on, from a fixed seed and the standard library.

    python assets/builtin_model/corpus.py --heldout-text FILE    # rewrites heldout.json and calibration.txt too

A *question* is one turn of the user with its answer, its kind, and the words that a right answer contains. The ways to
ask are in `phrasings.txt`; some are held out, so that the held-out questions use wordings never trained on. A
*conversation* is a list of questions, noised as people type; a *document* is a conversation or a plain story.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import facts
import stories
from grammar import HERE, article, mash, nonsense, normalised, punctuate, reword, sections, type_like_people, words

BOS, SYSTEM, USER, ASSISTANT, END = "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
IMPORT_HINT = "For more: edge-llm import Qwen/Qwen2.5-0.5B-Instruct or edge-llm import path/to/model"


@dataclass(frozen=True)
class Question:
    """One turn of the user, its answer, and the words by which a right answer is recognised."""

    kind: str
    text: str
    answer: str
    check: tuple[str, ...]


Make = Callable[[Random, bool], Question]  # draws one question, from the held-out phrasings if told so


@dataclass(frozen=True)
class Kind:
    """A source of questions and its share of the training text."""

    name: str
    weight: float
    make: Make


def ask(kind: str, rng: Random, held: bool, answer: str, section: str | None = None, **slots: str) -> Question:
    """A question whose whole answer is checked."""
    text = sections()[section or kind].phrase(rng, held).format(**slots)
    return Question(kind, text, answer, (answer,))


# ---- numbers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """How one arithmetic operation is said, which operands it is asked for, and its result."""

    sign: str
    words: tuple[str, ...]
    operands: Callable[[Random], tuple[int, int]]
    result: Callable[[int, int], int]


def _division_operands(rng: Random) -> tuple[int, int]:
    divisor = rng.randint(1, 10)
    return divisor * rng.randint(0, 10), divisor


def _subtraction_operands(rng: Random) -> tuple[int, int]:
    first, second = rng.randint(0, 20), rng.randint(0, 20)
    return (second, first) if first < second and rng.random() < 0.7 else (first, second)


def _up_to(limit: int) -> Callable[[Random], tuple[int, int]]:
    return lambda rng: (rng.randint(0, limit), rng.randint(0, limit))


OPERATIONS = [
    Operation("+", ("+", "+", "plus", "plus", "and", "added to"), _up_to(20), int.__add__),
    Operation("-", ("-", "-", "minus", "minus", "take away", "less"), _subtraction_operands, int.__sub__),
    Operation("*", ("*", "x", "times", "times", "multiplied by"), _up_to(10), int.__mul__),
    Operation("/", ("/", "divided by", "over"), _division_operands, int.__floordiv__),
]
OPERATION_WEIGHTS = (4, 3, 3, 1.5)


def say_number(rng: Random, value: int) -> str:
    return facts.NUMBER_WORDS[value] if value <= 20 and rng.random() < 0.35 else str(value)


def make_sum(rng: Random, held: bool) -> Question:
    operation = rng.choices(OPERATIONS, OPERATION_WEIGHTS)[0]
    first, second = operation.operands(rng)
    word = rng.choice(operation.words)
    said = f"{say_number(rng, first)} {word} {say_number(rng, second)}"
    if word in "+-*/x" and rng.random() < 0.4:
        said = f"{first}{word}{second}"
    return ask("arithmetic", rng, held, _sum(first, operation, second), sum=said)


def make_word_problem(rng: Random, held: bool) -> Question:
    first, second = rng.randint(1, 20), rng.randint(1, 20)
    slots = {"a": say_number(rng, first), "b": say_number(rng, second)}
    slots |= {"name": rng.choice(words("first_names")), "thing": rng.choice(words("countables"))}
    return ask("word_problem", rng, held, _sum(first, OPERATIONS[0], second), **slots)


def _sum(first: int, operation: Operation, second: int) -> str:
    return f"{first} {operation.sign} {second} = {operation.result(first, second)}."


def make_count_range(rng: Random, held: bool) -> Question:
    first = rng.randint(1, 15)
    last = rng.randint(first + 2, min(first + 14, 20))
    return _count(rng, held, "count_range", first, last)


def make_count_to(rng: Random, held: bool) -> Question:
    return _count(rng, held, "count_to", 1, rng.randint(3, 20))


def make_count_down(rng: Random, held: bool) -> Question:
    return _count(rng, held, "count_down", 1, rng.randint(3, 12))


def _count(rng: Random, held: bool, kind: str, first: int, last: int) -> Question:
    numbers = [str(value) for value in range(first, last + 1)]
    answer = ", ".join(reversed(numbers) if kind == "count_down" else numbers) + "."
    return ask(kind, rng, held, answer, a=say_number(rng, first), b=say_number(rng, last))


def make_next_number(rng: Random, held: bool) -> Question:
    value, step = rng.randint(1, 20), rng.choice([1, 1, -1])
    where = {1: "after", -1: "before"}[step]
    answer = f"{value + step} comes {where} {value}."
    return ask("next_number", rng, held, answer, where=where, item=say_number(rng, value))


def make_compare(rng: Random, held: bool) -> Question:
    first, second = rng.sample(range(21), 2)
    answer = f"{max(first, second)} is bigger than {min(first, second)}."
    return ask("compare", rng, held, answer, a=say_number(rng, first), b=say_number(rng, second))


# ---- facts ---------------------------------------------------------------------------------------------------------


def make_concept(rng: Random, held: bool) -> Question:
    concept = rng.choice([section for name, section in sections().items() if name.startswith("concept ")])
    question = ask("concept", rng, held, concept.keys["answer"], name=rng.choice(concept.names))
    return replace(question, check=concept.check)


def make_calendar(rng: Random, held: bool) -> Question:
    cycle = rng.choice([facts.WEEKDAYS, facts.WEEKDAYS, facts.MONTHS])
    index, step = rng.randrange(len(cycle)), rng.choice([1, 1, -1])
    where = {1: "after", -1: "before"}[step]
    item, result = cycle[index], cycle[(index + step) % len(cycle)]
    return ask("calendar", rng, held, f"{result} comes {where} {item}.", where=where, item=item)


def make_list(rng: Random, held: bool) -> Question:
    names, answer = rng.choice(facts.LISTS)
    return ask("lists", rng, held, answer, item=rng.choice(names.split("|")))


def make_colour(rng: Random, held: bool) -> Question:
    item, plural, colour = rng.choice(facts.COLOURS)
    bare = item.removeprefix("a ").removeprefix("an ")
    answer = f"{item[0].upper()}{item[1:]} is {colour}."
    return ask("colour", rng, held, answer, item=rng.choice([item, item, bare]), items=plural)


def make_opposite(rng: Random, held: bool) -> Question:
    word, opposite = rng.choice(OPPOSITES)
    return ask("opposite", rng, held, f"The opposite of {word} is {opposite}.", word=word)


def _both_ways(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    table = {second: first for first, second in reversed(pairs)} | dict(pairs)
    return list(table.items())


OPPOSITES = _both_ways(facts.OPPOSITES)


def make_sound(rng: Random, held: bool) -> Question:
    animal, sound = rng.choice(list(facts.SOUNDS.items()))
    return ask("sound", rng, held, f"{article(animal).capitalize()} says {sound}.", animal=animal)


def make_capital(rng: Random, held: bool) -> Question:
    country, city = rng.choice(list(facts.CAPITALS.items()))
    return ask("capital", rng, held, f"The capital of {country} is {city}.", country=country)


def make_amount(rng: Random, held: bool) -> Question:
    (what, whole), answer = rng.choice(list(facts.AMOUNTS.items()))
    if rng.random() < 0.45:
        whole, legs = rng.choice(list(facts.LEGS.items()))
        what, answer = "legs", f"{whole.capitalize()} has {legs} legs."
    return ask("amount", rng, held, answer, what=what, whole=whole)


# ---- names, echoes, jokes, stories ---------------------------------------------------------------------------------


def make_name(rng: Random, held: bool) -> Question:
    """The name comes back exactly as it was typed, so that any name can be repeated."""
    name = rng.choice(words("first_names")) if rng.random() < 0.4 else nonsense(rng).capitalize()
    name = name.lower() if rng.random() < 0.3 else name
    question = ask("name", rng, held, f"Nice to meet you, {name}!", name=name)
    return replace(question, text=question.text.lstrip(", "))


def make_name_unknown(rng: Random, held: bool) -> Question:
    """Asked for a name that was never told."""
    return ask("name_unknown", rng, held, "You have not told me your name yet.")


def make_repeat(rng: Random, held: bool) -> Question:
    parts = [nonsense(rng) if rng.random() < 0.3 else rng.choice(words("things")) for _ in range(rng.randint(1, 4))]
    phrase = rng.choice(["hello", "hello world", "good morning", "banana", "I am a robot"])
    said = phrase if rng.random() < 0.3 else " ".join(parts)
    return ask("repeat", rng, held, said, words=said)


def make_joke(rng: Random, held: bool) -> Question:
    return ask("joke", rng, held, facts.JOKES["computer"])


def make_joke_about(rng: Random, held: bool) -> Question:
    topic, joke = rng.choice(list(facts.JOKES.items()))
    return ask("joke_about", rng, held, joke, topic=rng.choice([article(topic), f"{topic}s", f"the {topic}"]))


def make_story(rng: Random, held: bool) -> Question:
    return replace(ask("story", rng, held, _story(rng, None)), check=(". ",))


def make_story_about(rng: Random, held: bool) -> Question:
    """Mostly about a topic of the grammar; sometimes about any thing, or about a child with a given name."""
    topic, roll = rng.choice(stories.TOPICS), rng.random()
    asked, answer = rng.choice(stories.names_of(topic)), _story(rng, topic)
    if roll < 0.15 and not held:
        topic = rng.choice(words("things")) if rng.random() < 0.6 else nonsense(rng)
        asked, answer = article(topic), stories.tell(rng, topic)
    elif roll < 0.3 and not held:
        topic = rng.choice(["girl", "boy"])
        name = rng.choice(stories.GIRLS if topic == "girl" else stories.BOYS)
        asked, answer = f"a {topic} {rng.choice(['named', 'called'])} {name}", stories.tell(rng, topic, name)
    question = ask("story_about", rng, held, answer, topic=asked)
    return replace(question, check=(f" {topic}",) if topic in stories.NOUNS else (". ",))


def make_story_more(rng: Random, held: bool) -> Question:
    return replace(ask("story_more", rng, held, stories.tell(rng)), check=(". ",))


def _story(rng: Random, topic: str | None) -> str:
    """Mostly the one story that belongs to the topic, so that the likeliest answer is a clear one; else any."""
    canonical = stories.tell(Random(f"canonical {topic}"), topic)
    return canonical if rng.random() < (0.5 if topic else 0.3) else stories.tell(rng, topic)


# ---- what a small model cannot do ----------------------------------------------------------------------------------


def _person(rng: Random) -> str:
    invented = f"{rng.choice(words('first_names'))} {nonsense(rng).capitalize()}"
    return rng.choice([*words("famous_people"), *[invented] * len(words("famous_people"))])


def _subject(rng: Random) -> str:
    thing = rng.choice(words("things"))
    return rng.choices(
        [
            rng.choice(words("subjects")),
            f"{thing}s",
            f"{thing} {rng.choice(['repair', 'design', 'prices', 'history', 'laws', 'art', 'safety'])}",
            nonsense(rng) + rng.choice(["", "s", "ism", "ology", "ing", "ation", "ics"]),
        ],
        (55, 15, 10, 20),
    )[0]


def _big_sum(rng: Random) -> str:
    """A sum beyond those of `make_sum`: an operand is too large, or the division leaves a rest."""
    large = rng.choice([rng.randint(21, 99), rng.randint(100, 999), rng.randint(1000, 99999)])
    other = rng.choice([rng.randint(2, 20), rng.randint(21, 99), rng.randint(100, 9999)])
    signs = [" + ", " - ", " * ", "+", "-", "*", " times ", " plus ", " minus ", " x "]
    sums = [f"{first}{sign}{second}" for first, second in ((large, other), (other, large)) for sign in signs]
    sums += [f"{rng.randint(11, 20)}{sign}{rng.randint(11, 20)}" for sign in (" * ", "*", " times ", " x ")]
    divisor = rng.randint(3, 12)
    odd = divisor * rng.randint(1, 30) + rng.randint(1, divisor - 1)
    sums += [f"{odd}{sign}{divisor}" for sign in (" / ", "/", " divided by ")] * 2
    return rng.choice(sums)


def make_near_miss(rng: Random, held: bool) -> Question:
    """Asks as for something the model knows, with a word it does not know: only that word tells."""
    odd = rng.choice([nonsense(rng), rng.choice(words("nouns")), rng.choice(words("things")), _subject(rng)])
    section, slots = rng.choice(
        [
            ("capital", {"country": rng.choice([*words("other_countries"), nonsense(rng).capitalize()])}),
            ("opposite", {"word": odd}),
            ("colour", {"item": nonsense(rng), "items": f"{nonsense(rng)}s"}),
            ("sound", {"animal": rng.choice([*words("other_animals"), nonsense(rng)])}),
            ("concept", {"name": rng.choice([odd, article(odd), rng.choice(words("near_concepts"))])}),
        ]
    )
    text = sections()[section].phrase(rng, held).format(**slots)
    return replace(refusal("unknown")(rng, held), kind="near_miss", text=text)


SLOT_LISTS = {  # slot of a phrasing: its list in words.txt
    "thing": "things",
    "activity": "activities",
    "dish": "dishes",
    "city": "cities",
    "verb": "verbs",
    "textkind": "text_kinds",
    "sentence": "sentences",
    "body": "body_parts",
    "property": "properties",
    "lang": "code_languages",
    "task": "code_tasks",
    "tongue": "human_languages",
    "role": "roles",
    "trouble": "troubles",
    "foreign": "other_language",
    "equation": "equations",
    "adj": "adjectives",
    "noun": "nouns",
    "do": "code_goals",
}


def open_slots(rng: Random) -> dict[str, str]:
    """Fills for every slot in the phrasings of what the model does not know."""
    slots = {slot: rng.choice(words(name)) for slot, name in SLOT_LISTS.items()}
    return slots | {
        "subject": _subject(rng),
        "subject2": _subject(rng),
        "person": _person(rng),
        "person2": _person(rng),
        "place": rng.choice([*words("cities"), *facts.CAPITALS, nonsense(rng).capitalize()]),
        "those": rng.choice([*words("those"), _subject(rng), f"{rng.choice(words('things'))}s"]),
        "year": str(rng.randint(1000, 2030)),
        "hour": str(rng.randint(1, 12)),
        "huge": str(rng.randint(101, 99999)),
        "big": _big_sum(rng),
        "nons": nonsense(rng),
        "mash": mash(rng),
    }


def refusal(name: str) -> Make:
    """Questions whose answer says what the small model lacks, and how to get a bigger one."""
    lack = sections()[name].keys["lack"]
    answer = f"I am only the small built-in model, so I {lack}. {IMPORT_HINT}"

    def make(rng: Random, held: bool) -> Question:
        question = ask(name, rng, held, answer, **open_slots(rng))
        return replace(question, check=(f"so I {lack}", "edge-llm import"))

    return make


def fixed(name: str) -> Make:
    """Questions whose answer is in `phrasings.txt`."""
    section = sections()[name]

    def make(rng: Random, held: bool) -> Question:
        return replace(ask(name, rng, held, section.keys["answer"]), check=section.check)

    return make


MAKERS: dict[str, Make] = {
    "arithmetic": make_sum,
    "word_problem": make_word_problem,
    "count_range": make_count_range,
    "count_to": make_count_to,
    "count_down": make_count_down,
    "next_number": make_next_number,
    "compare": make_compare,
    "concept": make_concept,
    "calendar": make_calendar,
    "lists": make_list,
    "colour": make_colour,
    "opposite": make_opposite,
    "sound": make_sound,
    "capital": make_capital,
    "amount": make_amount,
    "name": make_name,
    "name_unknown": make_name_unknown,
    "repeat": make_repeat,
    "joke": make_joke,
    "joke_about": make_joke_about,
    "near_miss": make_near_miss,
    "story": make_story,
    "story_about": make_story_about,
    "story_more": make_story_more,
}


def all_kinds() -> list[Kind]:
    """Every section of `phrasings.txt` that asks something, with the function that makes its questions."""
    kinds = []
    for name, section in sections().items():
        if name in MAKERS:
            kinds.append(Kind(name, section.weight, MAKERS[name]))
        elif "lack" in section.keys:
            kinds.append(Kind(name, section.weight, refusal(name)))
        elif section.train and "answer" in section.keys:
            kinds.append(Kind(name, section.weight, fixed(name)))
    return kinds


KINDS = all_kinds()
KIND_WEIGHTS = [kind.weight for kind in KINDS]

# ---- conversations and documents -----------------------------------------------------------------------------------

Message = tuple[str, str]  # role, text
EXACT = {"arithmetic", "big_sum", "repeat", "name", "name_recall", "opposite", "compare"}  # every word counts


def conversation(rng: Random, banned: set[str], turns: int) -> list[Message]:
    """A chat of `turns` turns; no question is one of the `banned` (held-out) ones."""
    messages: list[Message] = [("system", _system(rng))] if rng.random() < 0.3 else []
    name, last = None, ""
    while turns:
        question = _next_question(rng, name, last)
        if normalised(question.text) in banned:
            continue
        text = question.text if question.kind in EXACT else reword(question.text, rng)
        typed, last = type_like_people(text, rng), question.kind
        if question.kind == "name":
            name = question.answer.removeprefix("Nice to meet you, ").removesuffix("!")
            typed = typed if f" {name}" in typed else question.text  # a name to be repeated stays as it is
        messages += [("user", typed), ("assistant", question.answer)]
        turns -= 1
    return messages


def _next_question(rng: Random, name: str | None, last: str) -> Question:
    """Mostly independent of what came before; sometimes it refers back."""
    if name and rng.random() < 0.3:
        return ask("name_recall", rng, False, f"Your name is {name}.", section="name_unknown")
    if not name and rng.random() < 0.008:
        return make_name_unknown(rng, False)
    if last.startswith("story") and rng.random() < 0.15:
        return make_story_more(rng, False)
    return rng.choices(KINDS, KIND_WEIGHTS)[0].make(rng, False)


def _system(rng: Random) -> str:
    slots = open_slots(rng) | {"name": rng.choice(words("first_names"))}
    return sections()["system"].phrase(rng, False).format(**slots).strip()


def documents(seed: int, banned: set[str]) -> Iterator[list[Message]]:
    """Endless training documents; a plain story is one message of role `text`."""
    rng = Random(seed)
    while True:
        if rng.random() < 0.06:
            yield [("text", stories.tell(rng, rng.choice([None, *stories.TOPICS])))]
        else:
            yield conversation(rng, banned, turns=rng.choices([1, 2, 3, 4, 6, 9], (24, 20, 16, 12, 8, 4))[0])


def render(messages: list[Message]) -> str:
    """A document as the chat template writes it."""
    marks = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "text": ""}
    return BOS + "".join(f"{marks[role]}{text}{END}" for role, text in messages)


# ---- held-out questions --------------------------------------------------------------------------------------------

MANY = {"concept": 40, "arithmetic": 50, "unknown": 50, "story_about": 8}
MANY |= {"capital": 15, "opposite": 15, "colour": 12, "near_miss": 15}


def heldout_questions(seed: int = 7, per_kind: int = 6) -> list[Question]:
    """Questions in held-out phrasings, no two alike; more of the kinds that have many answers."""
    rng = Random(seed)
    kinds = [kind for kind in KINDS if sections()[kind.name].held or kind.name == "near_miss"]
    return [question for kind in kinds for question in _distinct(kind, rng, MANY.get(kind.name, per_kind))]


def _distinct(kind: Kind, rng: Random, count: int) -> list[Question]:
    found: dict[str, Question] = {}
    for _ in range(count * 20):
        question = kind.make(rng, True)
        if len(found) < count:
            found.setdefault(normalised(question.text), question)
    return [replace(question, text=_as_asked(question.text, rng)) for question in found.values()]


def _as_asked(text: str, rng: Random) -> str:
    text = punctuate(text, rng)
    return text[0].upper() + text[1:] if rng.random() < 0.7 else text


def banned_questions() -> set[str]:
    return {normalised(question.text) for question in heldout_questions()}


def is_right(answer: str, check: list[str]) -> bool:
    """An answer is of the right kind if it contains all the words of the check."""
    return all(word.lower() in answer.lower() for word in check)


# ---- files ---------------------------------------------------------------------------------------------------------


def write_heldout(path: Path) -> None:
    rows = [{"kind": q.kind, "question": q.text, "expect": list(q.check)} for q in heldout_questions()]
    body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{body}\n]\n", encoding="utf-8")
    print(f"{len(rows)} held-out questions in {path}")


def write_text(path: Path, seed: int, size: int) -> None:
    """About `size` characters of rendered documents, one per line."""
    source = map(render, documents(seed, banned_questions()))
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write(f"{next(source)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="write the held-out questions, the calibration and the held-out text")
    parser.add_argument("--heldout-text", type=Path, help="where the held-out text for perplexity goes")
    args = parser.parse_args()
    write_heldout(HERE / "heldout.json")
    write_text(HERE / "calibration.txt", seed=1001, size=45_000)
    if args.heldout_text:
        write_text(args.heldout_text, seed=2002, size=20_000)


if __name__ == "__main__":
    main()
