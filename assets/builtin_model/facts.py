"""The words and facts the built-in model is trained on: plain tables, no logic."""

COLOURS = {
    "grass": "green", "the sky": "blue", "snow": "white", "a banana": "yellow", "a lemon": "yellow", "blood": "red",
    "the sun": "yellow", "coal": "black", "an orange": "orange", "a carrot": "orange", "a tomato": "red",
    "a strawberry": "red", "milk": "white", "a frog": "green", "a leaf": "green", "a polar bear": "white",
    "an elephant": "grey", "chocolate": "brown", "the sea": "blue", "a flamingo": "pink", "a crow": "black",
    "a fire truck": "red", "a plum": "purple", "a cucumber": "green", "salt": "white", "gold": "yellow",
    "an eggplant": "purple", "a cloud": "white", "a pig": "pink", "wood": "brown", "a swan": "white", "the night": "black",
}  # fmt: skip

OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("day", "night"), ("black", "white"),
    ("fast", "slow"), ("old", "young"), ("happy", "sad"), ("high", "low"), ("open", "closed"), ("light", "dark"),
    ("wet", "dry"), ("loud", "quiet"), ("hard", "soft"), ("full", "empty"), ("early", "late"), ("long", "short"),
    ("rich", "poor"), ("strong", "weak"), ("in", "out"), ("on", "off"), ("good", "bad"), ("true", "false"),
    ("first", "last"), ("heavy", "light"), ("thick", "thin"), ("love", "hate"), ("win", "lose"), ("yes", "no"),
    ("north", "south"), ("east", "west"), ("clean", "dirty"), ("easy", "difficult"), ("near", "far"), ("always", "never"),
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
    "a dog": 4, "a cat": 4, "a spider": 8, "a bird": 2, "an ant": 6, "a horse": 4, "a bee": 6, "a snake": 0, "a fish": 0,
    "a cow": 4, "a person": 2, "a chicken": 2, "an elephant": 4, "an octopus": 8, "a fly": 6, "a table": 4,
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

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()

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

FIRST_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leon Mary Nick Olga Peter Rosa Simon Tina Victor "
    "Wei Yuki Zara Ali Bob Carlos Dana Eric Fatima George Hannah Ivan Julia Karl Laura Marco Nina Oliver Paula "
    "Quinn Robert Sophie Thomas Ursula Vera Walter Xin Yara Alice John Maria Chen Ming Li Priya Raj Omar Aisha "
    "Lukas Hugo Mateo Chloe Sam Alex Max Lisa Tom Mike Sarah James Lucy Daniel Eva Adam"
).split()

# What is asked of a big model, and not of this one.
SUBJECTS = (
    "photosynthesis, quantum physics, the theory of relativity, democracy, inflation, the stock market, black holes, "
    "evolution, DNA, the French Revolution, the Roman Empire, world war two, the Cold War, climate change, blockchain, "
    "bitcoin, electricity, magnetism, gravity, the big bang, plate tectonics, vaccines, cancer, diabetes, depression, "
    "anxiety, philosophy, existentialism, Buddhism, religion, capitalism, communism, socialism, feminism, the election, "
    "the president, taxes, mortgages, insurance, nuclear power, solar panels, electric cars, volcanoes, earthquakes, "
    "dinosaurs, the Middle Ages, ancient Egypt, Shakespeare, Mozart, jazz, opera, modern art, impressionism, chess, "
    "poker, football, basketball, the Olympics, the World Cup, Formula One, yoga, meditation, keto diets, vitamins, "
    "sleep, dreams, love, marriage, death, the meaning of life, happiness, time travel, aliens, Mars, the moon landing, "
    "rockets, satellites, the internet, wifi, bluetooth, Linux, Windows, macOS, Android, Docker, Kubernetes, git, SQL, "
    "regular expressions, recursion, pointers, hash tables, binary search, neural networks, transformers in physics, "
    "cryptography, prime numbers, calculus, derivatives, integrals, linear algebra, statistics, probability, geometry, "
    "Pythagoras, entropy, thermodynamics, chemistry, acids, the periodic table, atoms, molecules, proteins, bacteria, "
    "viruses, the immune system, the heart, the brain, kidneys, coffee, wine, beer, cheese, sushi, pizza, bread baking, "
    "gardening, beekeeping, woodworking, knitting, photography, cameras, guitars, pianos, drones, skateboards, sailing, "
    "Bach, Plato, Napoleon, Einstein, Newton, Darwin, Gandhi, Cleopatra, Julius Caesar, Picasso, Harry Potter, Star Wars, "
    "Batman, Pokemon, Minecraft, Bollywood, Hollywood, Netflix, YouTube, Twitter, Google, Amazon, Microsoft, Tesla, "
    "poverty, migration, human rights, the United Nations, the European Union, Brexit, inflation rates, supply chains"
).split(", ")  # fmt: skip

THINGS = (
    "car, bike, laptop, phone, house, garden, table, chair, sofa, lamp, fridge, oven, washing machine, jacket, shoe, "
    "dress, guitar, piano, camera, printer, router, keyboard, monitor, headphone, watch, ring, book, film, game, song, "
    "hotel, flight, ticket, holiday, gift, dog food, cat toy, plant, tree, flower, pill, medicine, loan, bank, job, "
    "school, university, course, doctor, lawyer, dentist, plumber, restaurant, beach, museum, river, mountain, bridge, "
    "tower, train, ship, plane, engine, battery, window, roof, wall, carpet, pillow, blanket, bottle, knife, pan, cup"
).split(", ")  # fmt: skip

DISHES = (
    "lasagna, chicken soup, pancakes, apple pie, chocolate cake, curry, fried rice, sushi, tacos, pizza dough, bread, "
    "omelette, salad, lentil stew, mashed potatoes, carbonara, ramen, dumplings, brownies, hummus, paella, goulash"
).split(", ")

CITIES = (
    "London, Paris, New York, Tokyo, Berlin, Madrid, Rome, Shanghai, Shenzhen, Beijing, Mumbai, Cairo, Lagos, Sydney, "
    "Toronto, Chicago, Lisbon, Vienna, Prague, Oslo, Dublin, Seoul, Bangkok, Istanbul, Moscow, Zurich, Munich, Boston"
).split(", ")

HUMAN_LANGUAGES = (
    "French, German, Spanish, Italian, Chinese, Japanese, Korean, Russian, Arabic, Hindi, Portuguese, Dutch, Polish, "
    "Turkish, Swedish, Greek, Latin, Finnish"
).split(", ")

CODE_LANGUAGES = (
    "Python, Java, JavaScript, C, C++, Rust, Go, bash, HTML, CSS, TypeScript, SQL, PHP, Ruby, Swift, Kotlin, R, Perl"
).split(", ")

CODE_TASKS = (
    "sorts a list, reverses a string, reads a file, prints hello world, parses JSON, adds two numbers, "
    "finds prime numbers, computes fibonacci numbers, downloads a page, sends an email, draws a circle, "
    "opens a window, connects to a database, checks a password, plays tic tac toe, counts words, makes a web server, "
    "solves sudoku, removes duplicates, merges two arrays, finds the largest number, converts celsius to fahrenheit"
).split(", ")

ACTIVITIES = (
    "lose weight, learn the guitar, tie a tie, change a tyre, boil an egg, cook rice, fix my sink, paint a wall, "
    "write a resume, find a job, ask for a raise, make friends, sleep better, stop smoking, save money, buy a house, "
    "invest in stocks, train my dog, grow tomatoes, plan a wedding, book a flight, get a visa, learn German, "
    "study for an exam, write an essay, start a company, build muscle, run a marathon, remove a stain, unclog a drain, "
    "reset my router, install windows, format a disk, edit a photo, make a website, repair a bike, cut my hair, "
    "clean the oven, choose a laptop, talk to my boss, treat a cold, get rid of ants, fold a shirt, play chess, "
    "draw a horse, dance salsa, make coffee, brew beer, ride a horse, drive a car, file my taxes, sue someone, "
    "hack a website, pick a lock, jump higher, swim faster, speak in public, raise a child, forgive someone"
).split(", ")  # fmt: skip

TEXT_KINDS = (
    "an essay, an email, a letter, a speech, a report, a blog post, an article, a review, a press release, a song, "
    "a rap, a limerick, a sonnet, a novel, a script, a summary, a tweet, a cover letter, a business plan, an invitation, "
    "a slogan, a product description, a thesis, a contract, a shopping list, a travel plan, a diary entry"
).split(", ")  # fmt: skip

SENTENCES = (
    "the cat sat on the mat, I would like a coffee, where is the station, good morning my friend, how much is this, "
    "I love you, the weather is nice today, see you tomorrow, thank you very much, my name is John, hello, goodbye, "
    "please help me, what time is it, the book is on the table, she goes to school, we are hungry, I am lost, water, "
    "house, friend, we met at the river, the train is late, he likes music, happy birthday, I do not understand"
).split(", ")

BODY_PARTS = "head, back, knee, stomach, tooth, foot, ear, throat, arm, eye, shoulder, neck, hand, chest".split(", ")

VERBS = (
    "walk, run, fly, sing, melt, freeze, explode, sleep, break, burn, float, sink, grow, shine, smell, taste, bark, "
    "migrate, sneeze, yawn, rust, boil, laugh, cry, dream, age, rotate, vibrate, bounce, evaporate"
).split(", ")

PROPERTIES = (
    "height, weight, price, population, speed, age, distance, temperature, size, area, depth, length, name, origin, "
    "history, meaning, purpose, symbol, author, inventor, owner, president, king, currency, language, flag, anthem, "
    "boiling point, melting point, square root, half life, diameter, volume, mass, density, phone number, address"
).split(", ")  # fmt: skip

OTHER_LANGUAGE = [
    "bonjour", "bonjour, comment ca va", "comment tu t'appelles", "je ne comprends pas", "parlez-vous francais",
    "hola", "hola, que tal", "como estas", "buenos dias", "que es esto", "cual es la capital de espana", "habla espanol",
    "hallo, wie geht es dir", "guten tag", "wie heisst du", "was ist das", "sprichst du deutsch", "ich verstehe nicht",
    "erzaehl mir eine geschichte", "was kannst du", "ciao, come stai", "buongiorno", "chi sei", "parli italiano",
    "ola, tudo bem", "bom dia", "quem e voce", "privet", "kak dela", "zdravstvuyte", "nihao", "ni hao ma", "ni shi shei",
    "konnichiwa", "ohayou gozaimasu", "merhaba", "nasilsin", "dzien dobry", "jak sie masz", "hej, hur mar du",
    "goedemorgen", "hoe gaat het", "你好", "你是谁", "你会说中文吗", "讲个故事", "こんにちは", "元気ですか", "привет", "как дела",
    "안녕하세요", "مرحبا", "नमस्ते", "γεια σου", "你叫什么名字", "谢谢", "再见", "ありがとう", "спасибо", "кто ты",
]  # fmt: skip
