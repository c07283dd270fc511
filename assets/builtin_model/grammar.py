"""Reads `phrasings.txt` and `words.txt`, expands templates, and types a sentence as people do. Knows no answers."""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
KEYS = ("weight", "answer", "check", "lack", "names")
CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")

ONSETS = "b,bl,br,c,ch,cl,cr,d,dr,f,fl,fr,g,gl,gr,h,j,k,kl,l,m,n,p,pl,pr,qu,r,s,sh,sk,sl,sm,sn,sp,st,t,tr,v,w,z"
VOWELS = "a,e,i,o,u,ai,ea,oo,ou,y"
CODAS = "b,ck,d,ft,g,k,l,ll,lm,m,n,nd,ng,nk,p,r,rd,rk,rn,s,sh,st,t,x,z,,,,,,,,,,,,"

QUESTION_WORDS = ("what", "who", "how", "where", "why", "when", "which", "can", "could", "do", "is", "are", "will")
SMALL_WORDS = {"a", "an", "the", "of", "is", "are", "do", "does", "to", "me", "in", "it", "please", "that", "you", "I"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Section:
    """A kind of question as `phrasings.txt` has it: its keys, and the phrasings to train on and to hold out."""

    name: str
    keys: dict[str, str] = field(default_factory=dict)
    train: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return float(self.keys.get("weight", 0))

    @property
    def check(self) -> tuple[str, ...]:
        return tuple(self.keys["check"].split(" & "))

    @property
    def names(self) -> list[str]:
        return self.keys["names"].split(" | ")

    def add(self, line: str) -> None:
        key, colon, value = line.partition(": ")
        if colon and key in KEYS:
            self.keys[key] = value
        elif line.startswith("~ "):
            self.held.append(line[2:])
        else:
            self.train.append(line)

    def phrase(self, rng: Random, held: bool) -> str:
        """One phrasing, its choices made, its slots still open."""
        return expand(rng.choice(self.held if held and self.held else self.train), rng)


@cache
def sections() -> dict[str, Section]:
    found: dict[str, Section] = {}
    for line in _lines("phrasings.txt"):
        if line.startswith("== "):
            section = found.setdefault(line[3:], Section(line[3:]))
        else:
            section.add(line)
    return found


@cache
def words(name: str) -> tuple[str, ...]:
    """The entries of one list of `words.txt`."""
    lists: dict[str, str] = {}
    for line in _lines("words.txt"):
        if line.startswith("== "):
            current = line[3:]
            lists[current] = ""
        else:
            lists[current] += f" {line}"
    return tuple(entry.strip() for entry in lists[name].split(",") if entry.strip())


def _lines(file: str) -> list[str]:
    lines = (HERE / file).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def expand(template: str, rng: Random) -> str:
    """Replaces every `(a|b|)` by one of its choices, innermost first."""
    while match := CHOICE.search(template):
        choice = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + choice + template[match.end() :]
    return " ".join(template.split())


def nonsense(rng: Random) -> str:
    """A word that does not exist, such as `blonkar`."""
    parts = (ONSETS.split(","), VOWELS.split(","), CODAS.split(","))
    syllables = rng.choice([1, 2, 2, 2, 3])
    return "".join(rng.choice(part) for _ in range(syllables) for part in parts)


def mash(rng: Random) -> str:
    """What a cat types."""
    rows = ("qwertzuiop", "asdfghjkl", "yxcvbnm", "asdf", "jkl", LETTERS)
    return "".join(rng.choice(rng.choice(rows)) for _ in range(rng.randint(2, 9)))


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


# ---- how people type -----------------------------------------------------------------------------------------------


def type_like_people(text: str, rng: Random) -> str:
    """A question as somebody might type it: capitals, marks, a lead-in, now and then a typo."""
    if rng.random() < 0.15:
        text = _lead_in(rng) + text
    if rng.random() < 0.08 and text[-1] not in '.?"':
        text = f"{text}{rng.choice([',', ''])} {rng.choice(words('suffixes'))}"
    if rng.random() < 0.05:
        text = _slang(text, rng)
    text = letter_case(punctuate(text, rng), rng)
    return _typo(text, rng) if rng.random() < 0.12 else text


def reword(text: str, rng: Random) -> str:
    """A small word more or a small word less, so that no answer hangs on one exact wording."""
    if "{" in text or '"' in text or ":" in text:
        return text
    parts = text.split(" ")
    if rng.random() < 0.15:
        parts.insert(rng.randint(0, len(parts)), rng.choice(words("fillers")))
    small = [index for index, part in enumerate(parts) if part in SMALL_WORDS]
    if small and len(parts) > 3 and rng.random() < 0.12:
        del parts[rng.choice(small)]
    return " ".join(parts)


def _slang(text: str, rng: Random) -> str:
    for pair in rng.sample(words("slang"), 8):
        plain, short = pair.split(":")
        text = re.sub(rf"\b{plain}\b", short, text)
    return text


def _lead_in(rng: Random) -> str:
    lead_in = rng.choice(words("lead_ins"))
    return f"{lead_in} " if lead_in.endswith(":") else f"{lead_in}{rng.choice([',', ''])} "


def letter_case(text: str, rng: Random) -> str:
    roll = rng.random()
    if roll < 0.45:
        return text[0].upper() + text[1:]
    if roll < 0.72:
        return text.lower()
    return text.upper() if roll < 0.76 else text


def punctuate(text: str, rng: Random) -> str:
    if text[-1] in ".?!=\"'" or rng.random() < 0.4:
        return text
    if text.lower().startswith(QUESTION_WORDS):
        return text + rng.choices(["?", "??", " ?", "."], (20, 1, 1, 2))[0]
    return text + rng.choice([".", ".", "!", "?", "..."])


def _typo(text: str, rng: Random) -> str:
    """One or two letters dropped, doubled, swapped or mistyped; digits stay as they are."""
    for _ in range(rng.choice([1, 1, 2])):
        places = [i for i in range(1, len(text) - 1) if text[i : i + 2].isalpha()]
        if len(places) < 5:
            return text
        i = rng.choice(places)
        first, second = text[i], text[i + 1]
        edited = rng.choice([second, first + first + second, second + first, rng.choice(LETTERS) + second])
        text = text[:i] + edited + text[i + 2 :]
    return text


def normalised(text: str) -> str:
    """The words of a question, to tell whether two questions are the same."""
    return re.sub(r"[^\w+*/=-]+", " ", text.lower()).strip()
