"""Short stories from a small grammar: a hero, a wish or a trouble, a turn, an ending.

`tell(rng)` gives a random story and `tell(rng, topic)` one about that topic. A plot is a list of beats; each beat
offers several sentences, and one `Cast` fills all the slots, so names and pronouns stay consistent to the end.
"""

from dataclasses import dataclass
from random import Random

from grammar import article

GIRLS = [
    "Mia", "Lily", "Anna", "Zoe", "Nora", "Ella", "Rosa", "Maya", "Ruby", "Clara", "Lena", "Ivy", "Sara",
    "Tina", "Emma", "Lucy", "Amy", "Eva", "Molly", "Hana",
]  # fmt: skip
BOYS = [
    "Tom", "Ben", "Max", "Leo", "Sam", "Tim", "Noah", "Finn", "Jack", "Omar", "Paul", "Adam", "Hugo", "Ravi",
    "Luca", "Oscar", "Theo", "Will", "Kai", "Jonas",
]  # fmt: skip
PETS = [
    "Pip", "Momo", "Bram", "Coco", "Dot", "Fizz", "Gus", "Hazel", "Juno", "Kiki", "Lulu", "Nib", "Olo", "Poppy",
    "Rufus", "Tilly", "Ziggy", "Bibi", "Tuck", "Wren",
]  # fmt: skip

ANIMALS = [
    "fox", "rabbit", "bear", "mouse", "cat", "dog", "duck", "owl", "frog", "hedgehog", "squirrel", "turtle",
    "penguin", "elephant", "lion", "pony", "goat", "donkey", "kitten", "puppy", "otter", "panda", "monkey",
    "bee", "snail", "dragon",
]  # fmt: skip
MACHINES = ["robot", "train", "tractor", "toy car"]
ADJECTIVES = ["little", "small", "young", "brave", "shy", "curious", "cheerful", "quiet", "clever", "gentle"]
PLACES = {
    "forest": "at the edge of a green forest",
    "sea": "in a white house by the sea",
    "hill": "on top of a windy hill",
    "farm": "on a small farm",
    "village": "in a sleepy village",
    "city": "in a busy city",
    "lake": "next to a blue lake",
    "garden": "in a garden full of flowers",
    "mountain": "at the foot of a tall mountain",
    "island": "on a tiny island",
    "river": "near a fast river",
    "castle": "in an old castle",
}
TREASURES = ["kite", "ball", "boat", "drum", "lantern", "hat", "bell", "book", "blanket", "umbrella", "scarf"]
COLOURS = ["red", "blue", "green", "yellow", "golden", "silver", "white", "orange"]
SKILLS = {
    "swim": "swim across the pond",
    "sing": "sing a whole song",
    "dance": "dance at the spring party",
    "climb": "climb the tallest tree",
    "read": "read a big book",
    "bake": "bake a perfect cake",
    "paint": "paint a picture of the sky",
    "skate": "skate on the frozen lake",
    "cook": "cook soup for the whole village",
    "whistle": "whistle like a bird",
}
GIFTS = ["cake", "scarf", "paper boat", "basket", "pie", "card", "crown of flowers", "wooden spoon", "pair of socks"]
FINDS = ["key", "map", "egg", "box", "shell", "door", "letter", "star", "bottle", "lamp"]
WEATHERS = ["storm", "rain", "snow", "night", "wind", "fog"]
MORALS = ["friendship", "sharing", "courage", "kindness", "patience", "winter", "spring", "birthday", "moon", "dream"]

NOUNS = {*ANIMALS, *MACHINES, *TREASURES, *FINDS}
TOPICS = [*ANIMALS, *MACHINES, *PLACES, *TREASURES, *SKILLS, *FINDS, *WEATHERS, *MORALS, "girl", "boy"]


@dataclass(frozen=True)
class Cast:
    """Everything one story talks about: plot slots by name, and the plot that uses them."""

    plot: str
    slots: dict[str, str]


PRONOUNS = {"girl": ("she", "her", "her"), "boy": ("he", "him", "his"), "it": ("it", "it", "its")}

OPENINGS = [
    "Once upon a time, there was a {adj} {kind} named {name}. {name} lived {place}.",
    "Once upon a time, a {adj} {kind} named {name} lived {place}.",
    "There once was a {adj} {kind} called {name} who lived {place}.",
    "{name} was a {adj} {kind}. {He} lived {place}.",
    "Long ago, {place}, there lived a {adj} {kind} named {name}.",
]
ENDINGS = [
    "From that day on, {name} and {friend} were best friends.",
    "That night {name} fell asleep with a smile.",
    "And every time {name} thought of that day, {he} smiled.",
    "{name} went home happy, and {friend} came along for tea.",
    'Then {name} laughed and said, "What a good day this was!"',
    "They all lived happily ever after.",
]

PLOTS: dict[str, list[list[str]]] = {
    "lost": [
        [
            "{name} had a {colour} {treasure} and took it everywhere.",
            "More than anything, {name} loved {his} {colour} {treasure}.",
            "{His} favourite thing was a {colour} {treasure}.",
        ],
        [
            "One morning the {treasure} was gone.",
            "But one day {he} could not find the {treasure}.",
            "One windy day the {treasure} disappeared.",
        ],
        [
            "{name} looked under the bed, behind the door and in the garden, but it was not there.",
            "{He} looked {search}, but found nothing.",
            "{He} searched all day long and felt very sad.",
        ],
        [
            'Then {he} met {friend} the {friendkind}. "What is wrong?" asked {friend}. "It is gone!" said {name}.',
            '{friend} the {friendkind} came by and said, "Do not worry. I will help you look."',
            '"Two can search better than one," said {friend} the {friendkind}, and they set off together.',
        ],
        [
            "Together they found it {spot}.",
            "At last they saw something {colour} {spot}. It was the {treasure}!",
            "They followed small tracks in the grass, and there was the {treasure}, {spot}.",
        ],
        [
            "{name} was so glad that {he} let {friend} play with it too.",
            '"Thank you!" said {name}, and they played with the {treasure} until the sun went down.',
            "{name} learned that a good friend is worth more than any {treasure}.",
        ],
    ],
    "learn": [
        [
            "{name} wanted to {skill}.",
            "More than anything, {name} wished to {skill}.",
            "Every night {name} dreamed that {he} could {skill}.",
        ],
        [
            "{He} tried once, but it did not work.",
            "The first time {he} tried, everything went wrong.",
            'The others laughed and said, "You are too small for that."',
        ],
        [
            '"I will never learn it," said {name} and sat down under a tree.',
            "{name} was sad and wanted to give up.",
            "{He} felt tired and a little bit angry.",
        ],
        [
            '{friend} the {friendkind} sat next to {him}. "I needed a hundred tries," said {friend}. "Try it slowly."',
            'Then {friend} the {friendkind} said, "Do a little every day, and do not be afraid of mistakes."',
            '"Shall we practise together?" asked {friend} the {friendkind}.',
        ],
        [
            "So {name} practised every day, in the sun and in the rain.",
            "They practised the next day, and the day after that, and the day after that.",
            "{name} took a deep breath and tried again, and again, and again.",
        ],
        [
            "And one fine morning {name} could {skill}. Everybody cheered.",
            'At last it worked! "I did it!" shouted {name}.',
            "When summer came, {name} could {skill}, and {friend} was very proud.",
        ],
    ],
    "friend": [
        [
            "{name} had nobody to play with and often felt alone.",
            "{name} was kind, but {he} was too shy to talk to anyone.",
            "Every day {name} played alone and wished for a friend.",
        ],
        [
            "One day a {friendkind} named {friend} came to live next door.",
            "One afternoon {he} heard somebody crying. It was a {friendkind} named {friend}.",
            "One day {name} saw a {friendkind} sitting alone on a bench. Its name was {friend}.",
        ],
        [
            '"Hello," said {name} in a very small voice. "Would you like to share my {snack}?"',
            "{name} did not know what to say, so {he} gave {friend} half of {his} {snack}.",
            '"Do you want to see my {colour} {treasure}?" asked {name}.',
        ],
        [
            '{friend} smiled. "I thought that nobody here liked me," said {friend}.',
            '"That is the nicest thing anyone has done for me," said {friend}.',
            "{friend} stopped crying and began to laugh.",
        ],
        [
            "They built a house of sticks and told each other secrets.",
            "They ran down the hill, counted the clouds and sang silly songs.",
            "All afternoon they played {search}.",
        ],
        [
            "When the stars came out, neither of them felt alone any more.",
            "After that day they met every morning.",
            "{name} learned that one small hello can change everything.",
        ],
    ],
    "weather": [
        [
            "{name} was afraid of one thing: {fear}.",
            "{name} was never afraid, except of {fear}.",
            "There was only one thing that {name} did not like, and that was {fear}.",
        ],
        [
            "One evening the sky grew dark and the wind began to howl.",
            "One day the clouds came down low and everything turned grey.",
            "One night {name} woke up because something went bump outside.",
        ],
        [
            "{name} wanted to hide under the blanket, but then {he} heard a tiny voice call for help.",
            "Then {he} heard {friend} the {friendkind} calling from outside.",
            "Outside, {friend} the {friendkind} had lost the way home.",
        ],
        [
            '"I must be brave now," said {name}, and {he} took {his} lantern and went out.',
            "{His} heart beat fast, but {he} opened the door and went out.",
            '{name} counted to three and ran outside. "I am coming!" {he} called.',
        ],
        [
            "{He} found {friend} {spot}, cold and wet, and led the way back to the warm kitchen.",
            "Hand in hand, {name} and {friend} walked home through the dark.",
            "Soon {friend} was safe inside, and they drank hot milk by the fire.",
        ],
        [
            '"You are the bravest {kind} I know," said {friend}.',
            "In the morning the sun was shining, and {name} was not afraid any more.",
            "{name} learned that being brave means to be afraid and to go anyway.",
        ],
    ],
    "gift": [
        [
            "Tomorrow was the birthday of {friend} the {friendkind}, and {name} wanted to make a {gift}.",
            "{name} wanted to give {friend} the {friendkind} a {gift}.",
            '"I will make a {gift} for {friend} the {friendkind}," said {name} one morning.',
        ],
        [
            "{He} worked all day and hummed a song.",
            "{He} got everything ready and began to work.",
            "It was hard work, and it took the whole morning.",
        ],
        [
            "But then {he} slipped, and the {gift} fell into the mud.",
            "But a gust of wind came and blew the {gift} away.",
            "But when it was ready, it looked crooked and strange.",
        ],
        [
            '"Now I have nothing to give," said {name}, and a tear rolled down {his} face.',
            "{name} was so sad that {he} did not want to go to the party.",
            "{name} went to the party anyway, with empty hands.",
        ],
        [
            '{friend} listened to the whole story and laughed. "You are here," said {friend}. "That is the best gift."',
            '"Come," said {friend}, "let us make a new one together."',
            '{friend} gave {name} a big hug. "You thought of me all day. What could be better?"',
        ],
        [
            "Then they danced and ate {snack} until it was dark.",
            "They made a new one, and it was even more crooked, and they loved it.",
            "{name} learned that a gift is not about the thing, but about the heart.",
        ],
    ],
    "find": [
        [
            "One day {name} found a {colour} {find} {spot}.",
            "While {he} was walking, {name} saw something shine {spot}. It was a {colour} {find}.",
            "One rainy morning {name} found an old {find} {spot}.",
        ],
        [
            '"Who does this belong to?" {he} wondered.',
            '"What a strange {find}!" said {name}. "I must find out where it came from."',
            "{He} had never seen such a thing before.",
        ],
        [
            "{He} asked the baker, the postman and the old owl, but nobody knew.",
            "{He} asked everyone in town, but they only shook their heads.",
            "{He} turned it round and round, but it kept its secret.",
        ],
        [
            'Then {friend} the {friendkind} whispered, "I know. It belongs to the old lady behind the hill."',
            '{friend} the {friendkind} looked at it closely. "Follow me," said {friend}.',
            '"I have seen one like it before," said {friend} the {friendkind}, "far away, behind the waterfall."',
        ],
        [
            "They walked over the bridge and through the tall grass until they came to a tiny house.",
            "They walked for a long time, and {name} began to feel hungry.",
            "The way was long, but they sang and shared {his} {snack}.",
        ],
        [
            'An old lady opened the door. "My {find}!" she cried. "I missed it for years." She gave them warm {snack}.',
            "And there, behind the last tree, was a secret garden full of light. It had waited for them.",
            "In the end {name} gave it back, and that felt better than keeping it.",
        ],
    ],
    "share": [
        [
            "{name} had a big basket of {snack}, and {he} did not want to share.",
            '{name} had the best {treasure} in town. "It is mine," {he} always said.',
            '"Mine, mine, mine," said {name} whenever someone came near {his} {snack}.',
        ],
        [
            '{friend} the {friendkind} asked, "May I have a little?" But {name} said no.',
            '"Can we play together?" asked {friend} the {friendkind}. "No," said {name}.',
            "So {friend} the {friendkind} and the others went away to play without {him}.",
        ],
        [
            "Soon {name} sat there all alone, and nothing was fun any more.",
            "The day was long and quiet, and {name} began to feel lonely.",
            "{name} could hear the others laugh far away.",
        ],
        [
            "{He} thought about it for a long time.",
            '"What good is it," {he} thought, "if nobody is here to enjoy it with me?"',
            "Then {he} got up and walked over to the others.",
        ],
        [
            '"I am sorry," said {name}. "Please take some."',
            '"Here," said {name} quietly. "This is for all of us."',
            '"Can I try again?" asked {name}. "I want to share now."',
        ],
        [
            '{friend} smiled and said, "Thank you. Come and sit with us."',
            "Everybody had a little, and somehow there was enough for all.",
            "{name} learned that good things grow when they are shared.",
        ],
    ],
    "rescue": [
        [
            "Every morning {name} went for a walk to look at the world.",
            "One sunny day {name} went out to pick berries.",
            "{name} liked to explore, and today {he} went further than ever before.",
        ],
        [
            'Suddenly {he} heard a voice. "Help! I am stuck!"',
            "There {he} saw {friend} the {friendkind}, who was stuck {spot}.",
            "All at once {he} heard somebody cry {spot}.",
        ],
        [
            "It was {friend} the {friendkind}. {name} pulled and pulled, but {he} was not strong enough.",
            '"Hold on, {friend}!" said {name}. {He} pulled with all {his} strength, but nothing moved.',
            "{name} ran as fast as {he} could, but poor {friend} could not move at all.",
        ],
        [
            "So {he} thought hard, and then {he} had an idea.",
            '"If I am not strong, I must be clever," said {name}.',
            "{He} called the birds, the mice and the old donkey.",
        ],
        [
            "{He} found a long branch, pushed it under the stone, and pop! {friend} was free.",
            "They all pulled together: one, two, three! And {friend} was free.",
            "With a rope and a lot of patience {he} got {friend} out.",
        ],
        [
            '"You saved me!" said {friend}. "Now I will always help you."',
            "They were both covered in mud, and they laughed until their bellies hurt.",
            "{friend} shared {snack} with everyone who had helped.",
        ],
    ],
}

SPOTS = [
    "under a big leaf", "behind the old barn", "between two stones", "under the wooden bridge", "in a hollow tree",
    "beside the well", "in the tall grass", "at the bottom of the stairs",
]  # fmt: skip
SEARCHES = ["in the barn and by the pond", "near the river and up the hill", "under the trees and along the fence"]
SNACKS = ["bread", "apples", "berries", "cookies", "soup", "pancakes", "cherries", "honey cake"]
FEARS = {
    "storm": "storms",
    "rain": "heavy rain",
    "snow": "deep snow",
    "night": "the dark night",
    "wind": "the loud wind",
    "fog": "thick fog",
}
MORAL_PLOTS = {
    "friendship": "friend", "sharing": "share", "courage": "weather", "kindness": "rescue", "patience": "learn",
    "winter": "weather", "spring": "find", "birthday": "gift", "moon": "find", "dream": "learn",
}  # fmt: skip


def tell(rng: Random, topic: str | None = None, hero: str | None = None) -> str:
    """One story of six to ten sentences, about `topic` if given (any noun will do); `hero` fixes the hero's name."""
    cast = _cast(rng, topic, hero)
    beats = [rng.choice(OPENINGS), *(rng.choice(beat) for beat in PLOTS[cast.plot]), rng.choice(ENDINGS)]
    sentences = (_capital(beat.format(**cast.slots)) for beat in beats)
    return _articles(" ".join(sentences))


def names_of(topic: str) -> list[str]:
    """How people name a topic when they ask for a story about it."""
    if topic in ("girl", "boy"):
        return [f"a {topic}", f"a little {topic}", f"a brave {topic}"]
    if topic in SKILLS:
        return [f"someone who wants to {topic}", f"learning to {topic}"]
    if topic in ("storm", "moon", "dream", "birthday"):
        return [topic, f"the {topic}", article(topic)]
    if topic in MORALS or topic in WEATHERS:
        return [topic]
    return [article(topic), article(topic), article(topic), f"{topic}s", f"the {topic}"]


def _cast(rng: Random, topic: str | None, hero: str | None) -> Cast:
    kind, name = _hero(rng, topic, hero)
    he, him, his = PRONOUNS[kind if kind in PRONOUNS else "it"]
    weather = topic if topic in WEATHERS else rng.choice(WEATHERS)
    skill = topic if topic in SKILLS else rng.choice(list(SKILLS))
    place = topic if topic in PLACES else rng.choice(list(PLACES))
    slots = {
        "name": name, "kind": kind, "adj": rng.choice(ADJECTIVES), "place": PLACES[place],
        "he": he, "him": him, "his": his, "He": he.capitalize(), "His": his.capitalize(),
        "friend": rng.choice([pet for pet in PETS if pet != name]),
        "friendkind": rng.choice([animal for animal in ANIMALS if animal not in (kind, topic)]),
        "treasure": topic if topic and (topic in TREASURES or topic not in TOPICS) else rng.choice(TREASURES),
        "find": topic if topic in FINDS else rng.choice(FINDS),
        "colour": rng.choice(COLOURS), "skill": SKILLS[skill], "fear": FEARS[weather],
        "gift": rng.choice(GIFTS), "spot": rng.choice(SPOTS), "search": rng.choice(SEARCHES),
        "snack": rng.choice(SNACKS),
    }  # fmt: skip
    return Cast(_plot(rng, topic), slots)


def _hero(rng: Random, topic: str | None, name: str | None) -> tuple[str, str]:
    """The hero's kind and name; a topic that is an animal or a machine becomes the hero."""
    if topic in ANIMALS or topic in MACHINES:
        return topic, name or rng.choice(PETS)
    kind = topic if topic in ("girl", "boy") else rng.choice(["girl", "boy", rng.choice(ANIMALS)])
    names = {"girl": GIRLS, "boy": BOYS}.get(kind, PETS)
    return kind, name or rng.choice(names)


def _plot(rng: Random, topic: str | None) -> str:
    if topic in MORAL_PLOTS:
        return MORAL_PLOTS[topic]
    for topics, plot in ((TREASURES, "lost"), (SKILLS, "learn"), (FINDS, "find"), (WEATHERS, "weather")):
        if topic in topics:
            return plot
    return "lost" if topic and topic not in TOPICS else rng.choice(list(PLOTS))


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _articles(text: str) -> str:
    """`a owl` becomes `an owl`."""
    words = text.split(" ")
    for index in range(len(words) - 1):
        if words[index] in ("a", "A") and words[index + 1][0] in "aeiou":
            words[index] += "n"
    return " ".join(words)
