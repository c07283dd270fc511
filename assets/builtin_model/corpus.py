"""All the text the built-in model is trained and measured on, from a fixed seed and the standard library.

    python assets/builtin_model/corpus.py --help

A *question* is one user turn with its answer, its kind and the words that a right answer contains. Questions of one
kind come from phrasing templates and slots; some templates are held out, so that the held-out questions use wordings
never trained on. A *conversation* is a list of questions, noised as people type; a *document* is a conversation or a
plain story.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import facts
import phrases
import stories

HERE = Path(__file__).parent
BOS, SYSTEM, USER, ASSISTANT, END = "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

IMPORT_HINT = "A bigger model does more: edge-llm import Qwen/Qwen2.5-0.5B-Instruct or edge-llm import path/to/model"


@dataclass(frozen=True)
class Question:
    """One user turn, its answer, and the words by which a right answer is recognised."""

    kind: str
    text: str
    answer: str
    check: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A source of questions: `make(rng, held)` draws one, from the held-out phrasings if `held`."""

    name: str
    weight: float
    make: Callable[[Random, bool], Question]


# ---- templates -----------------------------------------------------------------------------------------------------

CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")


def expand(template: str, rng: Random) -> str:
    """Replaces every `(a|b|)` by one of its choices, innermost first."""
    while match := CHOICE.search(template):
        choice = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + choice + template[match.end() :]
    return " ".join(template.split())


def pick(rng: Random, train: tuple[str, ...], held: tuple[str, ...], use_held: bool) -> str:
    return expand(rng.choice(held if use_held else train), rng)


def lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def nonsense(rng: Random) -> str:
    """A word that does not exist, such as `blonkar`."""
    onsets = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl l m n p pl pr qu r s sh sk sl sm sn sp st t tr v w z".split()
    vowels = "a e i o u ai ea oo ou y".split()
    codas = "b ck d ft g k l ll lm m n nd ng nk p r rd rk rn s sh st t x z".split() + [""] * 12
    return "".join(rng.choice(onsets) + rng.choice(vowels) + rng.choice(codas) for _ in range(rng.choice([1, 2, 2, 2, 3])))


# ---- questions with slots ------------------------------------------------------------------------------------------

def number(rng: Random, value: int) -> str:
    return facts.NUMBER_WORDS[value] if value <= 20 and rng.random() < 0.35 else str(value)


@dataclass(frozen=True)
class Operation:
    """How one arithmetic operation is said, and which operands it is asked for."""

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


OPERATIONS = [
    Operation("+", ("+", "+", "plus", "plus", "and", "added to"), lambda r: (r.randint(0, 20), r.randint(0, 20)), int.__add__),
    Operation("-", ("-", "-", "minus", "minus", "take away", "less"), _subtraction_operands, int.__sub__),
    Operation("*", ("*", "x", "times", "times", "multiplied by"), lambda r: (r.randint(0, 10), r.randint(0, 10)), int.__mul__),
    Operation("/", ("/", "divided by", "over"), _division_operands, int.__floordiv__),
]  # fmt: skip
SUM_TRAIN = lines("""
    (what is|what's|whats|how much is|calculate|compute|solve|work out|tell me|add up|do|wat is) {sum}
    {sum}
    {sum} =
    {sum} = ?
    {sum} is
    {sum} (is what|makes|equals|gives|equals what|please)
    (can you|could you|please|would you) (calculate|compute|solve|tell me|work out|add up) {sum}( for me|)
    (what do you get for|what does one get for|give me|I need|and) {sum}
    (what does|how much does) {sum} (make|give|equal)
    (how much|what) (do|would) {sum} (make|give|equal)
    (do you know|can you tell me) (what|how much) {sum} is
    (what is the|the|give me the|find the) (result|answer|value|sum|solution) (of|to|for) {sum}
    (ok|now|and now|next|and), (what is|how much is|calculate|) {sum}
    (maths|math|a sum|sum|a question): {sum}
    """)
SUM_HELD = lines("""
    I wonder how much {sum} could be
    say, what would {sum} be
    quick, {sum} makes what
    help me with this one: {sum}
    could you please help me to find out {sum}
    """)
APPLES_TRAIN = lines("""
    I have {a} {thing} and (get|buy|find|take|receive) {b} more. How many {thing} do I have( now|)?
    if I have {a} {thing} and (get|buy|find) {b} more, how many( {thing}|) do I have( then| now|)?
    {name} has {a} {thing} and (gets|buys|finds) {b} more. How many {thing} does {name} have( now|)?
    there are {a} {thing} and {b} more (come|arrive|are added). How many {thing} are there( now|)?
    """)
APPLES_HELD = lines("""
    {name} has {a} {thing}, and a friend gives {name} {b} more. How many {thing} is that?
    I had {a} {thing}, then I got another {b}. How many in total?
    """)


def make_sum(rng: Random, held: bool) -> Question:
    operation = rng.choices(OPERATIONS, (4, 3, 3, 1))[0]
    first, second = operation.operands(rng)
    word = rng.choice(operation.words)
    space = "" if word in "+-*/x" and rng.random() < 0.4 else " "
    if space:
        asked = f"{number(rng, first)} {word} {number(rng, second)}"
    else:
        asked = f"{first}{word}{second}"
    text = pick(rng, SUM_TRAIN, SUM_HELD, held).format(sum=asked)
    return _sum_question("arithmetic", text, first, operation, second)


def make_apples(rng: Random, held: bool) -> Question:
    first, second = rng.randint(1, 20), rng.randint(1, 20)
    slots = {
        "a": number(rng, first), "b": number(rng, second), "name": rng.choice(facts.FIRST_NAMES),
        "thing": rng.choice("apples pears eggs books coins cats balls pens cookies birds cars stones flowers".split()),
    }  # fmt: skip
    return _sum_question("word_problem", pick(rng, APPLES_TRAIN, APPLES_HELD, held).format(**slots), first, OPERATIONS[0], second)


def _sum_question(kind: str, text: str, first: int, operation: Operation, second: int) -> Question:
    answer = f"{first} {operation.sign} {second} = {operation.result(first, second)}."
    return Question(kind, text, answer, (answer,))


COUNT_TRAIN = lines("""
    count( up|) (from {a} to|from {a} up to) {b}
    (can|could|would) you( please|) count from {a} to {b}( for me|)
    (please|now|ok,) count from {a} to {b}
    (give me|say|list|write|tell me|show me) (the|all) numbers from {a} to {b}
    (what are|which are) the numbers (from {a} to|between {a} and) {b}
    count {a} to {b}
    from {a} to {b}, count
    numbers {a} to {b}
    I want you to count from {a} to {b}
    """)
COUNT_HELD = lines("""
    let me hear you count from {a} to {b}
    do you know how to count from {a} to {b}
    please write down every number from {a} to {b}
    """)
COUNT_TO_TRAIN = lines("""
    count (to|up to) {b}( please| for me|)
    (can|could|would) you( please|) count (to|up to) {b}( for me|)
    (please|now|ok,) count to {b}
    I want you to count to {b}
    """)
COUNT_TO_HELD = lines("""
    let me hear you count to {b}
    do you know how to count to {b}
    """)
COUNT_DOWN_TRAIN = lines("""
    count (down|backwards|back) from {b}( to {a}|)
    (can|could|would) you( please|) count (down|backwards) from {b}( to {a}|)
    (please|now|ok,) count (down|backwards) from {b}( to {a}|)
    (start|do|give me) (a|the) countdown from {b}( to {a}|)
    """)
COUNT_DOWN_HELD = lines("""
    let me hear you count backwards from {b}
    I want a countdown from {b}
    """)


def make_count(rng: Random, held: bool) -> Question:
    style = rng.choices(["range", "to", "down"], (5, 3, 2))[0]
    first = rng.randint(1, 15) if style == "range" else 1
    last = rng.randint(first + 2, min(first + 14, 20))
    if style == "down":
        last = rng.randint(3, 12)
    train, kept = {
        "range": (COUNT_TRAIN, COUNT_HELD),
        "to": (COUNT_TO_TRAIN, COUNT_TO_HELD),
        "down": (COUNT_DOWN_TRAIN, COUNT_DOWN_HELD),
    }[style]
    text = pick(rng, train, kept, held).format(a=number(rng, first), b=number(rng, last))
    numbers = range(first, last + 1)
    answer = ", ".join(map(str, reversed(numbers) if style == "down" else numbers)) + "."
    return Question("counting", text, answer, (answer,))


NEXT_TRAIN = lines("""
    (what|which day|which month|what day|which) (comes|is|follows) {where} {item}
    (what is|which is|what's|tell me) the (day|month|one|next one) {where} {item}
    (and|ok, and|what about) {where} {item}
    (today is|it is|if today is|this month is) {item}, what (comes|is) {where} (it|that)
    {where} {item}
    {where} {item} comes
    (can you tell me|do you know|please tell me) what (comes|is) {where} {item}
    """)
NEXT_HELD = lines("""
    name the one that comes {where} {item}
    I forgot what comes {where} {item}
    in the calendar, what is right {where} {item}
    """)


def make_next(rng: Random, held: bool) -> Question:
    cycle = rng.choice([facts.WEEKDAYS, facts.WEEKDAYS, facts.MONTHS])
    index, step = rng.randrange(len(cycle)), rng.choice([1, 1, -1])
    where = {1: "after", -1: "before"}[step]
    item, result = cycle[index], cycle[(index + step) % len(cycle)]
    text = pick(rng, NEXT_TRAIN, NEXT_HELD, held).format(where=where, item=item)
    return Question("calendar", text, f"{result} comes {where} {item}.", (f"{result} comes {where} {item}",))


NEXT_NUMBER_TRAIN = lines("""
    (what|which number|what number|which) (comes|is|follows) {where} {item}
    (what is|which is|tell me) the (number|next number) {where} {item}
    {where} {item}
    (can you tell me|do you know) what (comes|is) {where} {item}
    """)
NEXT_NUMBER_HELD = lines("""
    name the number {where} {item}
    which number is found right {where} {item}
    """)


def make_next_number(rng: Random, held: bool) -> Question:
    value, step = rng.randint(1, 20), rng.choice([1, 1, -1])
    where = {1: "after", -1: "before"}[step]
    text = pick(rng, NEXT_NUMBER_TRAIN, NEXT_NUMBER_HELD, held).format(where=where, item=number(rng, value))
    answer = f"{value + step} comes {where} {value}."
    return Question("next_number", text, answer, (answer,))


COMPARE_TRAIN = lines("""
    (which|what|which number|which one) is (bigger|larger|greater|more)(,|:|) {a} or {b}
    (is|what is) (bigger|larger|greater|more), {a} or {b}
    is {a} (bigger|larger|greater|more|smaller|less) than {b}
    (compare|which is bigger:) {a} and {b}
    {a} or {b}, which (one |)is (bigger|larger|greater|more)
    """)
COMPARE_HELD = lines("""
    please tell me which of {a} and {b} is larger
    of {a} and {b}, what is the greater number
    """)


def make_compare(rng: Random, held: bool) -> Question:
    first, second = rng.sample(range(21), 2)
    text = pick(rng, COMPARE_TRAIN, COMPARE_HELD, held).format(a=number(rng, first), b=number(rng, second))
    answer = f"{max(first, second)} is bigger than {min(first, second)}."
    return Question("compare", text, answer, (answer,))


LISTS = {
    "the days of the week": ("The days of the week are " + ", ".join(facts.WEEKDAYS[:-1]) + " and Sunday.", "days of the week|weekdays|seven days of the week|days in a week|week days"),
    "the months": ("The months are " + ", ".join(facts.MONTHS[:-1]) + " and December.", "months|months of the year|twelve months|months in a year"),
    "the alphabet": ("A B C D E F G H I J K L M N O P Q R S T U V W X Y Z.", "alphabet|letters of the alphabet|abc|english alphabet"),
    "the seasons": ("The seasons are spring, summer, autumn and winter.", "seasons|four seasons|seasons of the year"),
    "the colours": ("The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.", "colours of the rainbow|colors of the rainbow|rainbow colours|rainbow"),
}  # fmt: skip
LIST_TRAIN = lines("""
    (what are|which are|list|name|say|tell me|recite|show me|give me|write) (the|all|all the) {item}( please| in order| for me|)
    (can you|could you|do you know|please) (list|name|say|tell me|recite) (the|all the) {item}( please| in order|)
    the {item}
    (what|which) {item} (are there|do you know|do we have|exist)
    """)
LIST_HELD = lines("""
    I forgot the {item}, please help
    let me hear the {item}
    """)


def make_list(rng: Random, held: bool) -> Question:
    answer, names = rng.choice(list(LISTS.values()))
    item = rng.choice(names.split("|"))
    return Question("lists", pick(rng, LIST_TRAIN, LIST_HELD, held).format(item=item), answer, (answer,))


COLOUR_TRAIN = lines("""
    (what|which) (colour|color) (is|has|does) {item}( have| usually|)
    (what|which) (colour|color) (are|do) {items}( have| usually|)
    (what is|what's|whats|tell me|do you know) the (colour|color) of {item}
    (can you|could you|please) (tell me|say|name) (the|what) (colour|color) (of {item}|{item} is|{item} has)
    {item} (is|has) (which|what) (colour|color)
    (and|what about) the (colour|color) of {item}
    (colour|color) of {item}
    """)
COLOUR_HELD = lines("""
    if I look at {item}, which colour do I see
    I want to paint {item}, so which colour do I take
    in which color would you draw {item}
    """)


def make_colour(rng: Random, held: bool) -> Question:
    item, colour = rng.choice(list(facts.COLOURS.items()))
    bare = item.split(" ", 1)[1] if item.startswith(("a ", "an ")) else item
    plural = bare if bare == item else "leaves" if bare == "leaf" else bare + ("es" if bare.endswith(("o", "ch")) else "s")
    plural = plural.replace("strawberrys", "strawberries").replace("crowes", "crows")
    text = pick(rng, COLOUR_TRAIN, COLOUR_HELD, held).format(item=rng.choice([item, item, bare]), items=plural)
    answer = f"{item[0].upper()}{item[1:]} is {colour}."
    return Question("colour", text, answer, (answer,))


def _opposite_table() -> dict[str, str]:
    table = dict(facts.OPPOSITES)
    for first, second in facts.OPPOSITES:
        table.setdefault(second, first)
    return table


OPPOSITE = _opposite_table()
OPPOSITE_TRAIN = lines("""
    (what is|what's|whats|tell me|do you know|give me|name) the (opposite|contrary|antonym) (of|to) {word}
    (opposite|antonym) of {word}
    (what|which word) is (opposite|the opposite) (to|of) {word}
    {word} (is the opposite of what|and its opposite|, opposite)
    (can you|could you|please) (tell me|say|name|give me) the (opposite|antonym) of {word}
    (and|now|what about) the opposite of {word}
    the opposite of {word}( is|)
    """)
OPPOSITE_HELD = lines("""
    which word means the opposite of {word}
    something that is not {word} but the very opposite is called what
    I need an antonym for {word}
    """)


def make_opposite(rng: Random, held: bool) -> Question:
    word = rng.choice(list(OPPOSITE))
    answer = f"The opposite of {word} is {OPPOSITE[word]}."
    return Question("opposite", pick(rng, OPPOSITE_TRAIN, OPPOSITE_HELD, held).format(word=word), answer, (answer,))


SOUND_TRAIN = lines("""
    (what|which) (sound|noise) does a {animal} make
    (what|how) does (a|the) {animal} (say|sound|go)
    (what is|tell me|what's) the (sound|noise) of a {animal}
    (can you|could you|please) (make|do|imitate) (the sound of |the noise of |)a {animal}( sound|)
    (the|a) {animal} (says|goes|says what|makes which sound|goes what)
    {animal} (sound|noise)
    (make|do) (the sound of a {animal}|a {animal} noise|a {animal} sound|like a {animal})
    what do {animal}s say
    """)
SOUND_HELD = lines("""
    what would I hear from a {animal}
    tell me how a {animal} sounds
    please be a {animal} and make its noise
    """)


def make_sound(rng: Random, held: bool) -> Question:
    animal, sound = rng.choice(list(facts.SOUNDS.items()))
    answer = f"A {animal} says {sound}.".replace("A e", "An e").replace("A o", "An o")
    return Question("sound", pick(rng, SOUND_TRAIN, SOUND_HELD, held).format(animal=animal), answer, (answer,))


CAPITAL_TRAIN = lines("""
    (what is|what's|whats|which is|tell me|do you know|name|give me) the capital( city|) of {country}
    (which|what) (city|town) is the capital( city|) of {country}
    capital( city|) of {country}
    {country}'s capital
    (can you|could you|please) (tell me|name|say) the capital( city|) of {country}
    (and|what about) the capital of {country}
    the capital of {country}( is|)
    """)
CAPITAL_HELD = lines("""
    {country} has which capital city
    I am travelling to the capital of {country}, what is it called
    say, how is the capital of {country} called
    """)


def make_capital(rng: Random, held: bool) -> Question:
    country, city = rng.choice(list(facts.CAPITALS.items()))
    answer = f"The capital of {country} is {city}."
    return Question("capital", pick(rng, CAPITAL_TRAIN, CAPITAL_HELD, held).format(country=country), answer, (answer,))


AMOUNT_TRAIN = lines("""
    how many {what} (are there in|are in|does|are there, in|in|has) {whole}( have| has|)
    how many {what} {whole} has
    (tell me|do you know|can you tell me) how many {what} {whole} has
    (what is|give me) the number of {what} (in|of) {whole}
    {whole} has how many {what}
    number of {what} (in|of) {whole}
    """)
AMOUNT_HELD = lines("""
    I wonder how many {what} there are in {whole}
    count the {what} of {whole}
    """)


def make_amount(rng: Random, held: bool) -> Question:
    if rng.random() < 0.45:
        whole, count = rng.choice(list(facts.LEGS.items()))
        what, answer = "legs", f"{whole.capitalize()} has {count or 'no'} legs."
    else:
        (what, whole), answer = rng.choice(list(facts.AMOUNTS.items()))
    return Question("amount", pick(rng, AMOUNT_TRAIN, AMOUNT_HELD, held).format(what=what, whole=whole), answer, (answer,))


NAME_TRAIN = lines("""
    (hi|hello|hey|hi there|good day|), (my name is|I am|I'm|im|this is|they call me|call me|my name's|you can call me) {name}
    (my name is|I am called|they call me|call me|you can call me) {name}
    (hi|hello|hey), {name} here
    I am {name}(, nice to meet you|, who are you|, how are you|)
    """)
NAME_HELD = lines("""
    by the way, my name is {name}
    hello there, people call me {name}
    """)
NAME_ASK_TRAIN = lines("""
    (what is|what's|whats|tell me|say|do you know|do you remember|can you tell me) my name
    (what|how) (am I|was I|is my name|was my name|did I say my name is) called
    (who am I|what is my name again|do you still know my name|did you forget my name|what was my name|what did I say my name is)
    """)
NAME_ASK_HELD = lines("""
    so, can you still tell me how I am called
    and my name was
    please say my name
    """)


def make_name(rng: Random, held: bool) -> Question:
    name = rng.choice(facts.FIRST_NAMES) if rng.random() < 0.5 else nonsense(rng).capitalize()
    answer = f"Nice to meet you, {name}!"
    return Question("name", pick(rng, NAME_TRAIN, NAME_HELD, held).format(name=name).lstrip(", "), answer, (answer,))


def make_name_unknown(rng: Random, held: bool) -> Question:
    """Asked for a name that was never told."""
    answer = "You have not told me your name yet."
    return Question("name_unknown", pick(rng, NAME_ASK_TRAIN, NAME_ASK_HELD, held), answer, (answer,))


REPEAT_TRAIN = lines("""
    (repeat after me|repeat|say|please say|write|say the words|repeat this|please repeat|echo|just say|print|can you say): {words}
    (say|please say|repeat|can you say|write|just say) "{words}"
    """)
REPEAT_HELD = lines("""
    please repeat these words: {words}
    now say after me: {words}
    """)


def make_repeat(rng: Random, held: bool) -> Question:
    words = " ".join(nonsense(rng) if rng.random() < 0.3 else rng.choice(facts.THINGS) for _ in range(rng.randint(1, 4)))
    words = rng.choice([words, words, "hello", "hello world", "good morning", "banana", "I am a robot"])
    return Question("repeat", pick(rng, REPEAT_TRAIN, REPEAT_HELD, held).format(words=words), words, (words,))


STORY_TRAIN = lines("""
    (tell|read|give|write|make|invent) (me |us |)(a|another|one|a new|a little|a nice|a short|a funny|a bedtime|a good) story
    (can|could|would|will) you (please |)(tell|read|write|give) (me |us |)(a|a short|a little|another|a nice|a bedtime) story
    (I want|I would like|I'd like|I want to hear|give me|I need|please) (a|a short|a little|a nice|a bedtime) story
    (a story|story|story please|a story please|story time|it is story time|once upon a time|a fairy tale|tell me a fairy tale|tell me a tale)
    (let me|I want to|can I) hear a (short |nice |little |)story
    do you know (a|any) (story|stories|good story)
    """)
STORY_HELD = lines("""
    how about a little story for me
    please think of a nice tale and tell it
    my kid wants to hear some story now
    """)
STORY_ABOUT_TRAIN = lines("""
    (tell|read|give|write|make|invent) (me |us |)(a|another|one|a new|a little|a nice|a short|a funny|a bedtime) (story|tale) (about|with|of) {topic}
    (can|could|would|will) you (please |)(tell|write|read) (me |us |)(a|a short|a little|another) story (about|with) {topic}
    (I want|I would like|I'd like|I want to hear|give me|please) (a|a short|a little) story (about|with) {topic}
    (a story|story|short story|a tale|and one|another one|a short story) about {topic}
    (let me|I want to|can I) hear a (short |)story about {topic}
    do you know a story about {topic}
    """)
STORY_ABOUT_HELD = lines("""
    how about a little story in which there is {topic}
    please think of a tale of {topic} and tell it
    my kid wants to hear something with {topic}, a story
    """)
STORY_MORE = lines("""
    (another|one more|again|more|next)( one| story| please| story please|)
    (tell|give) me (another|one more|a different)( one| story|)
    (and|now|ok, now|can you tell) (another|one more)( one| story|)
    """)


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def story_topics() -> dict[str, tuple[str | None, list[str]]]:
    """Every topic a story can be asked about: its name in `stories` and how people say it."""
    topics = {}
    for topic in stories.PLAIN_TOPICS:
        if topic in stories.SKILLS:
            said = [f"someone who wants to {topic}", f"learning to {topic}"]
        elif topic in stories.MORALS or topic in stories.WEATHERS:
            said = [topic, f"the {topic}", article(topic)] if topic in ("storm", "moon", "dream", "birthday") else [topic]
        else:
            said = [article(topic), article(topic), f"{article(topic)}", f"{topic}s", f"the {topic}"]
        topics[topic] = said
    for kind in ("girl", "boy"):
        topics[kind] = [article(kind), f"a little {kind}", f"a brave {kind}"]
    return topics


STORY_TOPICS = story_topics()


def canonical_story(topic: str | None) -> str:
    """The one story that is told most often about a topic, so that the most likely answer is a clear one."""
    return stories.tell(Random(f"canonical {topic}"), topic)


def make_story(rng: Random, held: bool) -> Question:
    """A story on any subject; half of the answers are the canonical one, the others bring variety."""
    if rng.random() < 0.3:
        topic, text = None, pick(rng, STORY_TRAIN, STORY_HELD, held)
    else:
        topic = rng.choice(list(STORY_TOPICS))
        text = pick(rng, STORY_ABOUT_TRAIN, STORY_ABOUT_HELD, held).format(topic=rng.choice(STORY_TOPICS[topic]))
    answer = canonical_story(topic) if rng.random() < 0.6 else stories.tell(rng, topic)
    return Question("story", text, answer, (f" {topic}",) if topic in PLAIN_NOUNS else (". ",))


PLAIN_NOUNS = {*stories.ANIMALS, *stories.MACHINES, *stories.TREASURES, *stories.FINDS}


def make_story_more(rng: Random, held: bool) -> Question:
    return Question("story_more", pick(rng, STORY_MORE, STORY_MORE, held), stories.tell(rng), (". ",))


JOKE_TRAIN = lines("""
    (tell|give|make) (me |us |)(a|another|one|a new|a little|a good|a funny|a short) joke
    (can|could|would|will) you (please |)(tell|make) (me |us |)(a|a short|another|a good) joke
    (do you know|I want|I want to hear|please|I need|give me) (a|a good|a funny) joke
    (joke|a joke|a joke please|make me laugh|be funny|say something funny|tell me something funny|can you make me laugh)
    """)
JOKE_HELD = lines("""
    how about a joke to cheer me up
    let me hear one of your jokes
    """)
JOKE_ABOUT_TRAIN = lines("""
    (tell|give|make) (me |us |)(a|another|a funny|a short) joke (about|with) {topic}
    (can|could) you (please |)tell (me |)a joke (about|with) {topic}
    (a joke|do you know a joke|I want a joke|joke) about {topic}
    """)
JOKE_ABOUT_HELD = lines("""
    how about a joke on {topic}
    let me hear a joke with {topic} in it
    """)


def make_joke(rng: Random, held: bool) -> Question:
    if rng.random() < 0.4:
        text, topic = pick(rng, JOKE_TRAIN, JOKE_HELD, held), "computer"
    else:
        topic = rng.choice(list(facts.JOKES))
        text = pick(rng, JOKE_ABOUT_TRAIN, JOKE_ABOUT_HELD, held)
        text = text.format(topic=rng.choice([article(topic), f"{topic}s", f"the {topic}"]))
    return Question("joke", text, facts.JOKES[topic], (facts.JOKES[topic],))


# ---- what a small model cannot do ----------------------------------------------------------------------------------

def refuse(lack: str) -> str:
    return f"I am only the small built-in model, so I {lack}. {IMPORT_HINT}"


UNKNOWN_TRAIN = lines("""
    (what is|what's|whats|what are|explain|describe|define|what was|wat is) {subject}( to me| in simple words| in detail|)
    (tell me|teach me|talk|write|say something|I want to know|I need to learn|inform me|give me facts|give me information|tell me more) about {subject}
    (what do you think|what is your opinion|what do you know|what can you tell me|do you know anything|can you talk) (of|about) {subject}
    (can you|could you|please|would you) (explain|describe|tell me about|summarize|define|teach me) {subject}( to me|)
    (how does|how do|why does|when did|where did|why is|why are|how is|how was) {subject} (work|happen|begin|start|end|so important|important|made|change|matter)
    (why|when|where|how) (was|is|did|were|does) {subject} (invented|discovered|built|so popular|famous|start|come from|end|bad|good)
    who (invented|discovered|started|founded|wrote|made|won|built|painted|owns|is behind) {subject}
    (who is|who was|who are|do you know|tell me about|when was|where was|how old is|is) {person}( born| famous| alive| still alive|)
    {person}
    {subject}
    (what is|what's) the (difference|relation|connection|link) between {subject} and {subject2}
    (is|are) {subject} (better|worse|more important|older|bigger|harder) than {subject2}
    (what is|what's|tell me|how big is|find|calculate) the {property} of (a |the |){thing}
    (what is|what's|tell me) the {property} of {place}
    (give me|I need|do you have|any|share) (some |)(tips|advice|ideas|help|recommendations|suggestions|information) (on|for|about|with) {subject}
    (how do|how can|how should|how would|how to|where can|when should) (I|you|one|we|people) {activity}
    (help me|I want to|I need to|teach me to|show me how to|I would like to|please help me to|I have to|tell me how to) {activity}
    (should I|can I|is it ok to|is it hard to|is it a good idea to|is it safe to|do I have to|would you) {activity}
    (which|what) {thing} (should I buy|is the best|do you recommend|is better|is cheap|would you choose)
    (what is the best|recommend a|recommend me a|find me a|I need a|I want a|buy me a|where can I buy a|how much is a|sell me a) (good |cheap |new |big |nice |){thing}
    (how much does|how much is|what does) a {thing} (cost|weigh|in euros|in dollars)
    how many {thing}s (are there|exist|do people own|fit in a house|do I need)( in the world| in {place}|)
    (my|the) {thing} (is broken|does not work|is lost|is too slow|is dirty|was stolen|makes a noise)(, what do I do|, please help|, help|)
    (why|how|when) (do|does|can) {things_or_people} {verb}
    (can|do|does|will) {things_or_people} {verb}
    (what happens|what would happen) (if|when) {things_or_people} {verb}
    (my|why does my|the) {body} (hurts|hurt|itches|is swollen|is red)(, what should I do|, help|, is that bad|)
    write (me |)(a |an |the |){textkind}( about {subject}| for my {thing}| to my boss| on {subject}|)
    (can you|could you|please|help me|I need you to) (write|draft|make|create|finish|improve|correct) {textkind}( about {subject}| for me| on {subject}|)
    (summarize|summarise|shorten|rewrite|correct|check|proofread|paraphrase|fix|improve|analyse) (this|this text|this sentence|the following|my text|the grammar|the article): {sentence}
    (give me a recipe|what is the recipe|recipe|a recipe|I want a recipe) for {dish}
    (how do I|how to|can you|teach me to|I want to) (cook|make|bake|prepare) {dish}
    (what is in|what goes into|what do I need for|is it healthy to eat|what goes with) {dish}
    (what happened|who was king|who was president|who won the world cup|what was invented|who ruled) in {year}
    (when|in which year) (was|did|were) {subject} (begin|end|happen|born|start|invented)
    (plan|book|organise|find) (me |)(a trip|a holiday|a flight|a hotel|a journey|a table|a route) (to|in|near) {city}
    (how far|how long|how expensive|how big|how old|where|how safe) is {place}( from {city}| by train|)
    (who will|who is going to) win (the election|the world cup|the match|the game|the lottery|the war|the race)
    (is there|are there|do you believe in) (a god|god|aliens|life on mars|ghosts|free will|an afterlife|{subject}|{nons}s)
    (play|draw|paint|show me|send me|open|order|call|turn on|make me) (a picture of {subject}|some music|a song|a video|the lights|my mother|an email|a pizza|a {thing}|a photo|{subject})
    (set|start|make) (a timer|an alarm|a reminder|a meeting|an appointment)( for {hour} o'clock| for tomorrow|)
    (what|which) (film|book|game|song|movie|series|band|restaurant|podcast) (should I|do you|would you|can I) (watch|recommend|read|like|hear|suggest|play|love)
    what is your favou?rite (film|book|game|song|movie|colour|food|animal|team|number|place|{thing})
    (solve|find x|simplify|integrate|factor|differentiate|plot|prove)(:|) {equation}
    what is a {nons}
    what (colour|color|sound|size) (is|does|has) (a|the) {nons}
    (what is|what's|tell me) the (opposite|capital|meaning|plural|colour|price|sound|name|definition|synonym) of {nons}
    (what|who|where|why|when|how) (is|are|does|was) {nons}( {nons}|)
    (explain|define|describe|tell me about|how do I|do you know|have you seen|how to) {nons}( {nons}|)
    {nons}
    {nons} {nons}
    {nons} {nons} {nons}
    (what is|what's) the plural of {thing}
    (what|which word) rhymes with {thing}
    (spell|how do you spell|how is it spelled:|what is a synonym for|use in a sentence:|what is another word for) {thing}
    (name|list|give me|tell me) (ten|five|three|some|all) ({thing}s|{subject}|cities|countries|rivers|presidents|singers|famous people|animals that can fly|books about {subject})
    (I think|people say|my friend says|I heard|is it true) that {subject} (is|are) (bad|good|wrong|dangerous|fun|expensive|over|easy|a lie)
    (I am|I'm|we are|my sister is|my brother is) (writing|reading|studying|working on|interested in|worried about|learning about) {subject}
    (what is|what's) the (largest|biggest|smallest|tallest|longest|oldest|fastest|richest|deepest|most expensive) (country|city|animal|river|mountain|building|lake|planet|person|tree|{thing})( in the world| in {place}| ever|)
    (let us play|can we play|play|do you want to play) (a game|chess|hangman|a quiz|tic tac toe|twenty questions|cards|football)
    (pretend|imagine|act as if|act like) (you are|you were|that you are) (a |the |){role}
    (my|the) (wife|husband|boss|mother|father|friend|girlfriend|boyfriend|son|daughter|neighbour|teacher) {trouble}
    """)
UNKNOWN_HELD = lines("""
    I have a question about {subject}, please answer it
    for school I must learn all about {subject}
    in your view, is {subject} a good thing
    would you give me some background on {subject}
    there is a book on {subject}, is it worth reading
    what steps do I take to {activity}
    I never managed to {activity}, any hints
    could a beginner {activity}
    how expensive would a new {thing} be
    where was {person} living before
    did {person} ever meet {person2}
    I am looking for a good recipe with {dish}
    what do people in {place} like to eat
    compose {textkind} on the topic of {subject}
    have you ever heard of a {nons}
    my teacher talked about {nons}, what could it be
    which {thing} would suit a small flat
    in {year}, what was going on with {subject}
    please entertain me with facts on {subject}
    debate with me whether {subject} should be taught
    """)
CODE_TRAIN = lines("""
    (write|create|give me|make|show me|generate|code)( me|) (a |some |an |the |)(function|program|script|code|class|method|snippet|loop|one-liner)( in {lang}|) that {task}
    (write|create|give me|show me) (a |some |)({lang}) (function|program|script|code|class|snippet)( that {task}|)
    (how do|how can|how to|how would) (I|you) (write|code|program|implement|declare|sort|define|use|make|debug) (a |an |)(loop|function|list|class|array|variable|thread|regex|dictionary|program|recursion|while loop|if statement)( in {lang}|)
    (fix|debug|explain|review|refactor|optimize|test|check) (this|my|the) (code|function|program|script|bug|{lang} code|error|query)( please| for me|)
    (what is wrong|what's wrong|why is there an error) (with|in) (my|this) ({lang} |)(code|program|script|function)
    (can you|could you|do you|are you able to) (code|program|write code|write programs|write {lang}|debug|know {lang}|speak {lang}|write {lang} code|code in {lang})
    (teach me|learn|explain|what is|tell me about|how do I learn) ({lang}|programming|coding|to program|to code)( programming|)
    (implement|code|program) (quicksort|bubble sort|a linked list|a binary tree|a stack|fizzbuzz|a calculator|tetris|snake|a parser|a compiler|a chatbot|a website)( in {lang}|)
    print("{nons}")
    def {nons}(x): return x
    for i in range({year}): print(i)
    my ({lang} |)(program|code|script|function) (crashes|does not compile|is slow|has a bug|throws an exception|fails)
    """)
CODE_HELD = lines("""
    I need {lang} code which {task}
    please do my {lang} homework, a program that {task}
    would you be able to implement something that {task} using {lang}
    """)
TRANSLATE_TRAIN = lines("""
    (translate|please translate|can you translate|could you translate) (this|the sentence|the word|it|)(:|) ("|){sentence}("|) (to|into|in) {tongue}
    (translate|please translate) (to|into) {tongue}: {sentence}
    (translate|can you translate|please translate) (this|my text|a text|this text|something)( for me|) (to|into|from) {tongue}
    (how do you say|how do I say|what is|how to say|say|what's) ("|){sentence}("|) in {tongue}
    (what does|what is) "{nons}" (mean in|in) {tongue}
    (do you|can you|could you) (speak|understand|write|read|know|talk) {tongue}
    (speak|answer|reply|talk|write) (in |to me in |){tongue}( please|)
    (what is|what's) the {tongue} (word|translation|phrase) for {thing}
    """)
TRANSLATE_HELD = lines("""
    I need this in {tongue}: {sentence}
    please turn the words {sentence} into {tongue}
    how would somebody from abroad say {sentence} in {tongue}
    """)
LIVE_TRAIN = lines("""
    (what is|what's|whats|how is|how's|tell me|check|what will be|how will be) the (weather|temperature|forecast|weather forecast)( like|)( today| tomorrow| now| in {city}| in {city} today| this week|)
    (will it|is it going to|does it|is it) (rain|snow|be sunny|be cold|be hot|raining|snowing|windy)( today| tomorrow| in {city}| now| outside|)
    (is it|how) (cold|hot|warm|sunny|raining|dark) (outside|today|in {city}|now|is it in {city}|is it today|is it outside)
    (what is|what's|tell me|what are|any|show me|give me|read me) the (news|latest news|headlines|news today|score|football results|traffic|lottery numbers)( today| from {city}| please|)
    (what|which) (time|day|date|year|month|hour) (is it|is today|is it now|is it in {city}|do we have|is it today)
    (what is|what's|tell me) (the time|the date|today's date|the current time|the current date|the day today|the current year|the time in {city})
    (what is|what's|tell me) the (price of {subject}|stock price of {subject}|exchange rate|dollar rate|bitcoin price|price of gold)( today| now|)
    (what happened|what is going on|what's new|what happens) (today|yesterday|in the world|in {city}|now|this week)
    (weather|weather in {city}|news|news today|time|date|today's weather|forecast)
    (who is|who's) the (current |)(president|prime minister|king|mayor|chancellor|world champion|pope)( now| today| of {city}| of {place}|)
    """)
LIVE_HELD = lines("""
    should I take an umbrella in {city} today
    any idea what the weather will be in {city}
    could you look up the latest headlines
    my clock is broken, what time is it
    """)
BIG_SUM_TRAIN = lines("""
    (what is|what's|how much is|calculate|compute|solve|work out|tell me|) {big}
    {big}( =|)
    (can you|could you|please) (calculate|compute|solve) {big}( for me|)
    (what is|calculate|compute) the (square root|cube|square|logarithm|factorial|half|sine) of {huge}
    (what is|how much is|calculate) {huge} (percent|%) of {huge}
    (is|check whether|tell me if) {huge} (is |)(prime|a prime number|even|odd|divisible by 7)
    """)
BIG_SUM_HELD = lines("""
    I wonder how much {big} could be
    help me with this one: {big}
    """)
LANGUAGE_TRAIN = ("{foreign}",)

ROLES = "pirate, doctor, teacher, wizard, king, detective, linux terminal, lawyer, poet, dragon, therapist, chef".split(", ")
TROUBLES = (
    "is angry with me, left me, does not talk to me, wants a divorce, is ill, lies to me, forgot my birthday, is too loud, "
    "gave me a bad mark, wants more money, does not sleep, is getting married, lost the job, will not eat"
).split(", ")  # fmt: skip


def person(rng: Random) -> str:
    known = "Einstein, Napoleon, Mozart, Marie Curie, Obama, Elon Musk, Taylor Swift, Messi, Beyonce, Goethe, Confucius"
    if rng.random() < 0.3:
        return rng.choice(known.split(", "))
    return f"{rng.choice(facts.FIRST_NAMES)} {nonsense(rng).capitalize()}"


def subject(rng: Random) -> str:
    roll = rng.random()
    if roll < 0.55:
        return rng.choice(facts.SUBJECTS)
    if roll < 0.7:
        return rng.choice(facts.THINGS) + "s"
    if roll < 0.8:
        return f"{rng.choice(facts.THINGS)} {rng.choice(['repair', 'design', 'prices', 'history', 'laws', 'art', 'safety'])}"
    return nonsense(rng) + rng.choice(["", "s", "ism", "ology", "ing", "ation", "ics"])


def big_sum(rng: Random) -> str:
    first = rng.choice([rng.randint(21, 99), rng.randint(100, 999), rng.randint(1000, 99999)])
    second = rng.choice([rng.randint(21, 99), rng.randint(2, 999), rng.randint(100, 99999)])
    pair = (first, second) if rng.random() < 0.7 else (second, first)
    sign = rng.choice([" + ", " - ", " * ", " / ", "+", "-", "*", "/", " times ", " plus ", " minus ", " divided by ", " x "])
    return f"{pair[0]}{sign}{pair[1]}"


def unknown_slots(rng: Random) -> dict[str, str]:
    """Fills for every slot of the phrasings of things the model does not know."""
    return {
        "subject": subject(rng), "subject2": subject(rng), "person": person(rng), "person2": person(rng),
        "thing": rng.choice(facts.THINGS), "activity": rng.choice(facts.ACTIVITIES), "dish": rng.choice(facts.DISHES),
        "city": rng.choice(facts.CITIES), "place": rng.choice([*facts.CITIES, *facts.CAPITALS, nonsense(rng).capitalize()]),
        "textkind": rng.choice(facts.TEXT_KINDS), "sentence": rng.choice(facts.SENTENCES),
        "body": rng.choice(facts.BODY_PARTS), "verb": rng.choice(facts.VERBS), "property": rng.choice(facts.PROPERTIES),
        "things_or_people": rng.choice(["birds", "people", "cats", "fish", "stars", "ships", "planes", "ice", "water",
                                        "children", "trees", "stones", subject(rng), f"{rng.choice(facts.THINGS)}s"]),
        "year": str(rng.randint(1000, 2030)), "hour": str(rng.randint(1, 12)), "nons": nonsense(rng),
        "equation": rng.choice(["x^2 - 4 = 0", "2x + 3 = 7", "y = 3x", "sin(x)", "a + b = c", "3x^2", "x/2 = 8", "e^x"]),
        "lang": rng.choice(facts.CODE_LANGUAGES), "task": rng.choice(facts.CODE_TASKS),
        "tongue": rng.choice(facts.HUMAN_LANGUAGES), "foreign": rng.choice(facts.OTHER_LANGUAGE),
        "big": big_sum(rng), "huge": str(rng.randint(101, 99999)), "role": rng.choice(ROLES),
        "trouble": rng.choice(TROUBLES),
    }  # fmt: skip


def refusal_kind(name: str, weight: float, lack: str, train: tuple[str, ...], held: tuple[str, ...]) -> Kind:
    """A kind of question whose answer says what the small model lacks, and how to get a bigger one."""
    answer = refuse(lack)

    def make(rng: Random, use_held: bool) -> Question:
        text = pick(rng, train, held, use_held).replace("favou?rite", rng.choice(["favourite", "favorite"]))
        return Question(name, text.format(**unknown_slots(rng)), answer, (f"so I {lack}", "edge-llm import"))

    return Kind(name, weight, make)


# ---- kinds ---------------------------------------------------------------------------------------------------------

def fixed_kind(fixed: phrases.Fixed) -> Kind:
    def make(rng: Random, held: bool) -> Question:
        return Question(fixed.kind, pick(rng, fixed.train, fixed.held, held), fixed.answer, fixed.check)

    return Kind(fixed.kind, fixed.weight, make)


def make_concept(rng: Random, held: bool) -> Question:
    _, names, answer, check = rng.choice(phrases.CONCEPTS)
    text = pick(rng, phrases.CONCEPT_TRAIN, phrases.CONCEPT_HELD, held).format(name=rng.choice(names.split("|")))
    return Question("concept", text, answer, (check,))


KINDS = [
    *(fixed_kind(fixed) for fixed in [*phrases.SMALL_TALK, *phrases.IDENTITY, *phrases.EDGE_LLM]),
    Kind("concept", 9.0, make_concept),
    Kind("arithmetic", 14.0, make_sum),
    Kind("word_problem", 1.5, make_apples),
    Kind("counting", 2.5, make_count),
    Kind("calendar", 2.0, make_next),
    Kind("next_number", 0.8, make_next_number),
    Kind("compare", 1.2, make_compare),
    Kind("lists", 0.8, make_list),
    Kind("colour", 2.0, make_colour),
    Kind("opposite", 2.2, make_opposite),
    Kind("sound", 1.5, make_sound),
    Kind("capital", 2.5, make_capital),
    Kind("amount", 1.8, make_amount),
    Kind("name", 1.2, make_name),
    Kind("repeat", 1.0, make_repeat),
    Kind("joke", 1.2, make_joke),
    Kind("story", 4.0, make_story),
    refusal_kind("unknown", 14.0, "do not know that", UNKNOWN_TRAIN, UNKNOWN_HELD),
    refusal_kind("code", 2.0, "cannot write code", CODE_TRAIN, CODE_HELD),
    refusal_kind("translate", 1.8, "cannot translate", TRANSLATE_TRAIN, TRANSLATE_HELD),
    refusal_kind("live", 1.8, "cannot look anything up", LIVE_TRAIN, LIVE_HELD),
    refusal_kind("big_sum", 1.8, "can only do small sums", BIG_SUM_TRAIN, BIG_SUM_HELD),
    refusal_kind("language", 0.8, "only understand English", LANGUAGE_TRAIN, LANGUAGE_TRAIN),
]
KIND_WEIGHTS = [kind.weight for kind in KINDS]

# ---- how people type -----------------------------------------------------------------------------------------------

LEAD_INS = (
    "please, so, ok, and, hey, well, now, quick question:, one question:, say, hmm, tell me, um, sorry but, edge-llm, next question:, "
    "I have a question:, I was wondering, I want to know, just curious, hi, hello"
).split(", ")  # fmt: skip
SUFFIXES = ["please", "thanks", "thank you", "now", "then", "ok", "pls", "my friend", "for me"]
QUESTION_WORDS = ("what", "who", "how", "where", "why", "when", "which", "can", "could", "do", "does", "is", "are", "will")


def type_like_people(text: str, rng: Random) -> str:
    """A question as somebody might type it: capitals, marks, a lead-in, now and then a typo."""
    if rng.random() < 0.06:
        lead_in = rng.choice(LEAD_INS)
        text = f"{lead_in}{'' if lead_in.endswith(':') else rng.choice([',', ''])} {text}"
    if rng.random() < 0.05 and not text.endswith((".", "?", '"')):
        text = f"{text}{rng.choice([',', ''])} {rng.choice(SUFFIXES)}"
    text = _punctuate(text, rng)
    roll = rng.random()
    if roll < 0.45:
        text = text[0].upper() + text[1:]
    elif roll < 0.72:
        text = text.lower()
    elif roll < 0.76:
        text = text.upper()
    if rng.random() < 0.10:
        text = _typo(text, rng)
    return text


def _punctuate(text: str, rng: Random) -> str:
    if text[-1] in ".?!=\"'" or rng.random() < 0.4:
        return text
    if text.lower().startswith(QUESTION_WORDS):
        return text + rng.choices(["?", "??", " ?", "."], (20, 1, 1, 2))[0]
    return text + rng.choice([".", ".", "!", "?", "..."])


def _typo(text: str, rng: Random) -> str:
    """One or two letters dropped, doubled, swapped or mistyped; digits stay as they are."""
    for _ in range(rng.choice([1, 1, 2])):
        places = [i for i in range(1, len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
        if len(places) < 5:
            return text
        i = rng.choice(places)
        edit = rng.choice(["drop", "double", "swap", "wrong"])
        middle = {
            "drop": "", "double": text[i] * 2, "swap": text[i + 1] + text[i], "wrong": rng.choice("abcdefghijklmnopqrstuvwxyz"),
        }[edit]  # fmt: skip
        text = text[:i] + middle + text[i + (2 if edit == "swap" else 1) :]
    return text


SYSTEM_TRAIN = lines("""
    You are (a|an) (helpful|friendly|polite|kind|useful|small|smart|honest) assistant.
    You are (a|an) (helpful|friendly) (assistant|chatbot|model|AI|language model)( who answers in English| that answers briefly| for children| of edge-llm|). (Answer briefly.|Be polite.|Be kind.|Answer in one sentence.|Keep it short.|)
    You are {role}. (Answer|Speak|Talk) (briefly|politely|clearly|like one).
    You are {name}(, a helpful assistant|, a friendly robot|). (Answer all questions.|Help the user.|)
    (Be|Always be|Stay) (brief|polite|kind|honest|helpful)( and brief| and clear|). (Do not lie.|Never swear.|Use simple words.|)
    (Answer|Reply) (in English|briefly|with one sentence|politely|in simple words|as well as you can).
    The user likes {subject}. (Answer|Be|Stay) (kindly|polite|brief|short).
    {nons} {nons} {nons}.
    Today is a day in {year}. The user lives in {city}. Be helpful.
    """)


def system_message(rng: Random) -> str:
    slots = unknown_slots(rng) | {"name": rng.choice(facts.FIRST_NAMES)}
    return expand(rng.choice(SYSTEM_TRAIN), rng).format(**slots).strip()


# ---- conversations and documents -----------------------------------------------------------------------------------

Message = tuple[str, str]  # role, text


def normalised(text: str) -> str:
    return re.sub(r"[^\w+*/=-]+", " ", text.lower()).strip()


def conversation(rng: Random, banned: set[str], turns: int) -> list[Message]:
    """A chat of about `turns` turns; no question is one of the `banned` (held-out) ones."""
    messages: list[Message] = [("system", system_message(rng))] if rng.random() < 0.3 else []
    known_name, last = None, ""
    while len(messages) < 2 * turns:
        question = next_question(rng, known_name, last)
        if normalised(question.text) in banned:
            continue
        messages += [("user", type_like_people(question.text, rng)), ("assistant", question.answer)]
        last = question.kind
        if question.kind == "name":
            known_name = question.answer.removeprefix("Nice to meet you, ").removesuffix("!")
            messages[-2] = ("user", _keep_name(messages[-2][1], question.text, known_name))
    return messages


def _keep_name(typed: str, text: str, name: str) -> str:
    """The name itself is typed without a typo, in either case."""
    return typed if name.lower() in typed.lower() else text


def next_question(rng: Random, known_name: str | None, last: str) -> Question:
    """Mostly independent of what came before; sometimes it refers back."""
    if known_name and rng.random() < 0.3:
        answer = f"Your name is {known_name}."
        return Question("name_recall", pick(rng, NAME_ASK_TRAIN, (), False), answer, (answer,))
    if last in ("story", "story_more") and rng.random() < 0.15:
        return make_story_more(rng, False)
    if not known_name and rng.random() < 0.006:
        return make_name_unknown(rng, False)
    return rng.choices(KINDS, KIND_WEIGHTS)[0].make(rng, False)


def documents(seed: int, banned: set[str]) -> Iterator[list[Message]]:
    """Endless training documents; a plain story is one message of role `text`."""
    rng = Random(seed)
    while True:
        if rng.random() < 0.06:
            yield [("text", stories.tell(rng, rng.choice([None, *stories.PLAIN_TOPICS])))]
        else:
            yield conversation(rng, banned, turns=rng.choices([1, 2, 3, 4, 6, 9], (24, 20, 16, 12, 8, 4))[0])


def render(messages: list[Message]) -> str:
    """A document as the chat template writes it."""
    marks = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "text": ""}
    return BOS + "".join(f"{marks[role]}{text}{END}" for role, text in messages)


# ---- held-out questions --------------------------------------------------------------------------------------------

def heldout_questions(seed: int = 7, per_kind: int = 6) -> list[Question]:
    """Questions in held-out phrasings: more of the kinds with many answers, no two alike."""
    rng = Random(seed)
    kinds = [kind for kind in KINDS if kind.name != "language"]
    counts = {"concept": 40, "arithmetic": 50, "unknown": 50, "story": 12, "capital": 15, "opposite": 15, "colour": 12}
    questions: list[Question] = []
    for kind in [*kinds, Kind("name_unknown", 0, make_name_unknown)]:
        questions += _distinct(kind, rng, counts.get(kind.name, per_kind))
    return questions


def _distinct(kind: Kind, rng: Random, count: int) -> list[Question]:
    found: dict[str, Question] = {}
    for _ in range(count * 20):
        question = kind.make(rng, True)
        found.setdefault(normalised(question.text), question)
        if len(found) == count:
            break
    return [Question(q.kind, _as_asked(q.text, rng), q.answer, q.check) for q in found.values()]


def _as_asked(text: str, rng: Random) -> str:
    text = _punctuate(text, rng)
    return text[0].upper() + text[1:] if rng.random() < 0.7 else text


def is_right(answer: str, check: tuple[str, ...] | list[str]) -> bool:
    """An answer is of the right kind if it contains all the words of the check."""
    return all(word.lower() in answer.lower() for word in check)


def write_text(path: Path, seed: int, banned: set[str], size: int, separator: str = "\n") -> None:
    """About `size` characters of rendered documents."""
    parts, total = [], 0
    for document in documents(seed, banned):
        parts.append(render(document))
        total += len(parts[-1])
        if total >= size:
            break
    path.write_text(separator.join(parts) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="write the held-out questions, the held-out text and the calibration text")
    parser.add_argument("--heldout-text", type=Path, help="where the held-out text for perplexity goes")
    args = parser.parse_args()
    questions = heldout_questions()
    banned = {normalised(question.text) for question in questions}
    rows = [{"kind": q.kind, "question": q.text, "expect": list(q.check)} for q in questions]
    body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (HERE / "heldout.json").write_text(f"[\n{body}\n]\n", encoding="utf-8")
    write_text(HERE / "calibration.txt", 1001, banned, 45_000)
    if args.heldout_text:
        write_text(args.heldout_text, 2002, banned, 20_000)
    print(f"{len(questions)} held-out questions")


if __name__ == "__main__":
    main()
