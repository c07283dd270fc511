"""The facts the built-in model is trained on: plain tables, no logic."""

COLOURS = [  # thing, things, colour
    ("grass", "grass", "green"),
    ("the sky", "the sky", "blue"),
    ("snow", "snow", "white"),
    ("a banana", "bananas", "yellow"),
    ("a lemon", "lemons", "yellow"),
    ("blood", "blood", "red"),
    ("the sun", "the sun", "yellow"),
    ("coal", "coal", "black"),
    ("an orange", "oranges", "orange"),
    ("a carrot", "carrots", "orange"),
    ("a tomato", "tomatoes", "red"),
    ("a strawberry", "strawberries", "red"),
    ("milk", "milk", "white"),
    ("a frog", "frogs", "green"),
    ("a leaf", "leaves", "green"),
    ("a polar bear", "polar bears", "white"),
    ("an elephant", "elephants", "grey"),
    ("chocolate", "chocolate", "brown"),
    ("the sea", "the sea", "blue"),
    ("a flamingo", "flamingoes", "pink"),
    ("a crow", "crows", "black"),
    ("a fire truck", "fire trucks", "red"),
    ("a plum", "plums", "purple"),
    ("a cucumber", "cucumbers", "green"),
    ("salt", "salt", "white"),
    ("gold", "gold", "yellow"),
    ("an eggplant", "eggplants", "purple"),
    ("a cloud", "clouds", "white"),
    ("a pig", "pigs", "pink"),
    ("wood", "wood", "brown"),
    ("a swan", "swans", "white"),
    ("the night", "the night", "black"),
]

OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("day", "night"), ("black", "white"),
    ("fast", "slow"), ("old", "young"), ("happy", "sad"), ("high", "low"), ("open", "closed"), ("light", "dark"),
    ("wet", "dry"), ("loud", "quiet"), ("hard", "soft"), ("full", "empty"), ("early", "late"), ("long", "short"),
    ("rich", "poor"), ("strong", "weak"), ("in", "out"), ("on", "off"), ("good", "bad"), ("true", "false"),
    ("first", "last"), ("heavy", "light"), ("thick", "thin"), ("love", "hate"), ("win", "lose"), ("yes", "no"),
    ("north", "south"), ("east", "west"), ("clean", "dirty"), ("easy", "difficult"), ("near", "far"),
    ("always", "never"),
    ("begin", "end"), ("push", "pull"), ("inside", "outside"), ("cheap", "expensive"), ("brave", "afraid"),
]  # fmt: skip

SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "horse": "neigh", "pig": "oink",
    "lion": "roar", "frog": "ribbit", "bee": "buzz", "owl": "hoot", "snake": "hiss", "mouse": "squeak", "wolf": "howl",
    "chicken": "cluck", "rooster": "cock-a-doodle-doo", "donkey": "hee-haw", "crow": "caw", "bird": "tweet",
    "goat": "maa", "goose": "honk", "turkey": "gobble", "cuckoo": "cuckoo", "monkey": "ooh-ooh", "elephant": "toot",
}  # fmt: skip

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "China": "Beijing", "Japan": "Tokyo",
    "England": "London", "the United Kingdom": "London", "Russia": "Moscow", "Egypt": "Cairo", "Greece": "Athens",
    "Portugal": "Lisbon", "Austria": "Vienna", "Poland": "Warsaw", "Sweden": "Stockholm", "Norway": "Oslo",
    "Denmark": "Copenhagen", "Finland": "Helsinki", "Ireland": "Dublin", "Belgium": "Brussels", "Canada": "Ottawa",
    "the United States": "Washington, D.C.", "the USA": "Washington, D.C.", "Mexico": "Mexico City",
    "Brazil": "Brasilia", "Argentina": "Buenos Aires", "India": "New Delhi", "Australia": "Canberra",
    "South Korea": "Seoul", "Turkey": "Ankara", "Switzerland": "Bern", "the Netherlands": "Amsterdam",
    "Hungary": "Budapest", "Kenya": "Nairobi", "Thailand": "Bangkok", "Cuba": "Havana", "Peru": "Lima",
    "Vietnam": "Hanoi", "Ukraine": "Kyiv", "Czechia": "Prague",
}  # fmt: skip

LEGS = {
    "a dog": "4", "a cat": "4", "a spider": "8", "a bird": "2", "an ant": "6", "a horse": "4", "a bee": "6",
    "a cow": "4", "a person": "2", "a chicken": "2", "an elephant": "4", "an octopus": "8", "a fly": "6",
    "a snake": "no", "a fish": "no", "a worm": "no", "a table": "4", "a sheep": "4", "a duck": "2", "a mouse": "4",
}  # fmt: skip

AMOUNTS = {
    ("days", "a week"): "A week has 7 days.",
    ("months", "a year"): "A year has 12 months.",
    ("days", "a year"): "A year has 365 days, and a leap year has 366.",
    ("weeks", "a year"): "A year has 52 weeks.",
    ("hours", "a day"): "A day has 24 hours.",
    ("minutes", "an hour"): "An hour has 60 minutes.",
    ("seconds", "a minute"): "A minute has 60 seconds.",
    ("seasons", "a year"): "A year has 4 seasons: spring, summer, autumn and winter.",
    ("letters", "the alphabet"): "The English alphabet has 26 letters.",
    ("centimetres", "a metre"): "A metre has 100 centimetres.",
    ("metres", "a kilometre"): "A kilometre has 1000 metres.",
    ("sides", "a triangle"): "A triangle has 3 sides.",
    ("sides", "a square"): "A square has 4 sides.",
    ("wheels", "a car"): "A car has 4 wheels.",
    ("wheels", "a bicycle"): "A bicycle has 2 wheels.",
    ("fingers", "a hand"): "A hand has 5 fingers.",
    ("planets", "the solar system"): "The solar system has 8 planets.",
    ("continents", "the world"): "The world has 7 continents.",
}

WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
]  # fmt: skip

NUMBER_WORDS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip

LISTS = [  # names (| separated), answer
    (
        "days of the week|weekdays|seven days of the week|days in a week|week days",
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        "months|months of the year|twelve months|months in a year",
        "The months are January, February, March, April, May, June, July, August, September, October, November and "
        "December.",
    ),
    (
        "alphabet|letters of the alphabet|abc|english alphabet",
        "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z.",
    ),
    (
        "seasons|four seasons|seasons of the year",
        "The seasons are spring, summer, autumn and winter.",
    ),
    (
        "colours of the rainbow|colors of the rainbow|rainbow colours|rainbow",
        "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.",
    ),
]

JOKES = {
    "cat": "Why did the cat sit on the computer? To keep an eye on the mouse.",
    "computer": "Why was the computer cold? It left its windows open.",
    "book": "Why was the maths book sad? It had too many problems.",
    "sea": "Why did the sea say nothing to the shore? It just waved.",
    "bear": "What do you call a bear with no teeth? A gummy bear.",
    "tomato": "Why did the tomato turn red? It saw the salad dressing.",
    "bicycle": "Why did the bicycle fall over? It was two-tired.",
    "ghost": "Why are ghosts bad liars? You can see right through them.",
    "egg": "Why do eggs not tell jokes? They would crack up.",
    "model": "Why did the language model cross the road? It predicted the other side.",
}
