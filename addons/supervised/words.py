"""Words and values from which demonstrations of tool calls are made (addons/supervised/toolsets.py).

The lists are written by hand. Names and codes beyond them are made up by `made_up` and `code`, so that a policy cannot learn
all of them and has to copy what it reads. `value(kind, rng)` gives a value of a kind that an argument may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

FIRST = """
Maria Ahmed Lena Jonas Chloe Mateo Sofia Liam Priya Kenji Amara Viktor Elsa Hugo Nadia Oscar Fatima Pavel Zoe Marco
Ingeborg Samuel Leila Diego Hana Felix Aisha Tomas Greta Rashid Emily George Mei Ivan Clara Abdul Rosa Peter Yara
Simon Olga Daniel Nina Carlos Ruth Ali Vera Paul Irina James Sara Luis Anton Julia Henry Dora Kofi Laura Max Alice
Bruno Teresa Omid Hannah Erik Joanna Malik Stella Arthur Noor Philip Wanda Isaac Lucy Andre Marta Tariq Helen Stefan Gloria
""".split()
LAST = """
Lopez Hansen Okoro Schmidt Tanaka Rossi Dubois Novak Haddad Kim Silva Patel Jensen Kowalski Brown Murphy Garcia Weber
Nakamura Osman Petrov Larsen Costa Meyer Ndiaye Fischer Suzuki Moreno Bauer Wilson Khan Horvat Lind Marino Becker Chen
Adeyemi Torres Vogel Singh Eriksson Martin Walsh Romano Keller Sato Popov Diaz Baker Hughes Cooper Reyes Ward Stone
Fox Berger Hill Vargas Young Bell Cruz Ramos Wright Shaw Olsen Frank Pereira Mason Quinn Yilmaz
""".split()
PLACES = """
Lisbon Nairobi Oslo Hamburg Kyoto Denver Lyon Madrid Cairo Quito Dublin Perth Turin Porto Leeds Gdansk Austin Bergen
Seville Boston Munich Ghent Tallinn Mumbai Delhi Accra Lagos Hanoi Manila Vienna Zurich Geneva Bristol York Dover
Malmo Riga Athens Naples Verona Toledo Salem Dallas Miami Chicago Toronto Ottawa Montreal Lima Bogota Santiago Havana
Kingston Dakar Tunis Amman Doha Dubai Jakarta Seoul Osaka Sydney Auckland Brussels Antwerp Utrecht Cologne Prague
Krakow Warsaw Budapest Zagreb Sofia Kiev Minsk France Spain Brazil Canada Japan India Kenya Norway Egypt Chile Mexico
Turkey Vietnam Ghana
""".split()
ROADS = """
Street Road Avenue Lane Square Hill Park Bridge Station Airport Harbour Gardens Court Way Valley Lake Bay Island Beach
Village Field
""".split()
THINGS = """
concert parcel taxi flight sauna lecture meeting painting camera laptop bicycle contract customer member employee
student project task event lesson workshop film poem article photo letter message document report survey refund
payment account subscription coupon voucher gift chair lamp sofa desk window door garden pool court boat ferry train
tram ship truck engine battery sensor robot drone machine printer scanner phone tablet screen speaker radio clock
alarm dishwasher oven fridge kettle curtain fan heater pump valve pipe tank well field tree plant seed tool hammer
drill ladder brick tile wall roof floor kitchen cellar garage studio gallery theatre cinema stadium gym school course
exam grade essay teacher class kindergarten hospital nurse dentist surgeon pharmacy pill dose vaccine allergy
treatment test sample mouse horse dog cat bird fish bee sheep hen pony stable shelter passport visa permit licence
seat cabin tent campsite hostel flat house castle tower bridge tunnel road path trail river lake mountain island beach
harbour market shop bakery butcher kiosk restaurant cafe bar menu dish soup salad pizza burger sandwich cake cookie
pie bread cheese butter egg apple pear plum cherry banana grape lemon onion carrot tomato bean rice pasta noodle sauce
spice coffee tea juice beer wine bottle cup plate spoon shirt jacket coat dress skirt sock shoe boot hat scarf glove
belt ring necklace watch bag suitcase umbrella pen pencil notebook folder file envelope stamp calendar diary map atlas
dictionary novel magazine newspaper podcast episode song album band choir orchestra violin piano guitar drum team
player coach match league goal tournament race runner swimmer climber budget mortgage tax bill receipt cheque salary
bonus share fund stock bank insurance claim policy server database backup update bug feature release website page link
domain video game level badge shipment container crate box shelf rack warehouse supplier delivery driver courier wheel
tyre brake mirror key lock card code user group role channel post comment friend guest visitor tenant landlord lawyer
judge case witness plumber electrician painter gardener cleaner cook waiter barber tailor baker farmer fisher pilot
captain sailor soldier guard planet star comet telescope rocket satellite mineral crystal fossil volcano glacier storm
season tide
""".split()
PLACED = """
shop office hotel library museum clinic garage school farm bank airport harbour theatre restaurant studio agency
company club hospital workshop laboratory warehouse town university zoo
""".split()
ADJECTIVES = """
red blue green yellow black white brown grey purple orange pink golden silver small large big tiny huge long short
tall wide narrow thick thin heavy light old new young fresh dry wet hot cold warm cool soft hard sweet sour bitter
salty spicy plain round square flat sharp smooth rough quiet loud fast slow cheap expensive wooden metal glass paper
plastic cotton woollen leather electric digital folding portable organic frozen smoked roasted baked grilled early
late northern southern eastern western central royal wild silent broken lost hidden secret happy lazy brave clever
gentle proud
""".split()
STUFF = """
flour sugar salt milk water oil honey jam soap paint glue tape rope wire cloth wool cotton paper sand gravel wood
steel copper timber fuel diesel petrol fertiliser compost bulbs screws nails bolts cables chargers pens candles
napkins mugs plates forks knives blankets pillows sheets masks helmets gloves boots jackets shirts socks olives
peppers lentils mushrooms oranges peaches melons nuts almonds raisins biscuits muffins rolls crackers sausages ham
bacon salmon tuna shrimps herbs basil mint ginger garlic pepper chili vanilla cocoa chocolate
""".split()
TOPICS = """
history music physics biology chess football tennis swimming yoga painting pottery dancing cooking baking gardening
fishing sailing astronomy poetry drawing photography climbing hiking cycling geometry algebra chemistry geography
politics economics law medicine religion philosophy architecture fashion theatre opera jazz ballet singing knitting
sewing carpentry robotics statistics grammar spelling safety hygiene marketing accounting parking heating plumbing
lighting cleaning
""".split()
WORDS = """
leak noise smell delay damage crack stain scratch rattle error crash loss theft fire flood strike accident headache
fever cough injury illness holiday wedding birthday funeral party picnic reunion interview training audit inspection
repair upgrade renewal return exchange complaint question request offer discount reminder proposal plan idea summary
draft speech story letter minutes agenda list schedule result answer note warning thanks apology greeting invitation
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()
UNITS = "kilograms pounds litres gallons hours minutes euros dollars grams ounces inches yards acres hectares".split()
SOUNDS = """
b b c d d f g h j k k l l m m n n p p qu r r s s t t v w x z br cr dr fl gr kl kr pl pr sh sk sl sn st str th tr ch wh
sch
""".split()
VOWELS = "a a a a e e e e i i i i o o o o u u y ai au ea ee ei ia ie io oa oo ou".split()
ENDS = "b ck d f g k l ll m n n nd ng nt p r r rd rk rn rt s ss st t th tt x z".split() + [""] * 20
ACCENTED = dict(zip("aeioucnsz", "áéíóüçñšž", strict=True))


def made_up(rng: Random) -> str:
    """A small word that nobody has seen."""
    word = "".join(
        rng.choice(SOUNDS) + rng.choice(VOWELS) + rng.choice(ENDS) for _ in range(rng.choice((1, 2, 2, 2, 2, 3)))
    )
    word = word if rng.random() < 0.8 else rng.choice(VOWELS)[:1] + word
    if rng.random() < 0.12:
        letter = rng.choice(list(ACCENTED))
        word = word.replace(letter, ACCENTED[letter], 1)
    return word[:12]


def name(names: Sequence[str], rng: Random, new: float = 0.5) -> str:
    """A proper name: of a list, or a made-up one."""
    return made_up(rng).capitalize() if rng.random() < new else rng.choice(names)


def code(rng: Random) -> str:
    """Letters and digits as companies number things."""
    letters = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.choice((1, 1, 2, 2, 3))))
    digits = "".join(rng.choices("0123456789", k=rng.choice((2, 3, 3, 4, 4, 5, 6))))
    low = "".join(rng.choices("0123456789abcdef", k=rng.choice((5, 6, 7, 8))))
    year = rng.randint(2015, 2029)
    return rng.choice(
        (f"{letters}-{digits}", f"{letters}{digits}", digits, f"{letters}-{year}-{digits}", f"{letters} {digits}", low,
         f"{digits}-{letters}", f"{digits}{letters}", f"{digits[:2]}/{year}", f"{letters}_{digits}", f"#{digits}",
         f"{made_up(rng)}-{made_up(rng)}", f"{letters} {digits} {rng.choice(LAST)[:2].upper()}")
    )  # fmt: skip


def date(rng: Random) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2030)
    return rng.choice(
        (f"{year}-{month:02d}-{day:02d}", f"{year}-{month:02d}-{day:02d}", f"{day} {MONTHS[month - 1]}",
         f"{day} {MONTHS[month - 1]} {year}", f"{MONTHS[month - 1]} {day}", f"{day}.{month}.{year}", rng.choice(DAYS),
         rng.choice(DAYS), "tomorrow", "today", f"next {rng.choice(DAYS)}")
    )  # fmt: skip


def time(rng: Random) -> str:
    hour, minute = rng.randint(0, 23), rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50, 55, rng.randint(0, 59)))
    half = f"{hour % 12 + 1} {rng.choice(('am', 'pm'))}"
    return rng.choice((f"{hour:02d}:{minute:02d}", f"{hour:02d}:{minute:02d}", f"{hour}:{minute:02d}", half, "noon"))


def person(rng: Random) -> str:
    first, last = name(FIRST, rng), name(LAST, rng)
    title = rng.choice(("Mr", "Mrs", "Ms", "Dr"))
    return rng.choice((f"{first} {last}", f"{first} {last}", f"{first} {last}", first, last, f"{title} {last}"))


def place(rng: Random) -> str:
    town = name(PLACES, rng)
    road = f"{name([*LAST, *PLACES], rng, 0.4)} {rng.choice(ROADS)}"
    return rng.choice((town, town, town, road, f"{rng.randint(1, 200)} {road}", f"{town} {rng.choice(ROADS)}"))


def item(rng: Random) -> str:
    """What is bought, moved or mended, in small letters."""
    word = rng.choice((plural(rng.choice(THINGS)), rng.choice(STUFF), rng.choice(STUFF), made_up(rng), made_up(rng)))
    adjective = rng.choice((rng.choice(ADJECTIVES), rng.choice(THINGS), made_up(rng)))
    return f"{adjective} {word}" if rng.random() < 0.45 else word


def title(rng: Random) -> str:
    """The name of a book, a film, a song, a club or a product."""
    noun = rng.choice((rng.choice(THINGS), rng.choice(WORDS), made_up(rng))).capitalize()
    adjective = rng.choice((rng.choice(ADJECTIVES), made_up(rng))).capitalize()
    own = name(LAST, rng)
    return rng.choice(
        (f"The {noun}", f"The {adjective} {noun}", f"{adjective} {noun}", f"{noun} of {name(PLACES, rng)}", noun,
         f"The {noun} of the {rng.choice(THINGS).capitalize()}", f"{own} & {name(LAST, rng)}", f"{own} {noun}",
         f"{noun} in {name(PLACES, rng)}", f"{noun} {rng.randint(2, 99)}", f"{made_up(rng).capitalize()} {noun}")
    )  # fmt: skip


def note(rng: Random) -> str:
    """A few words that say what something is about."""
    first, second = rng.choice(THINGS), rng.choice(WORDS)
    return rng.choice(
        (f"the {first} is {rng.choice(ADJECTIVES)}", f"{second} in the {first}", f"{rng.choice(ADJECTIVES)} {first}",
         f"{first} {second}", f"{second} of {name(FIRST, rng)}", second, f"New {first} for {name(LAST, rng)}", made_up(rng),
         f"{second.capitalize()} about the {first}", f"Bring {item(rng)} and {item(rng)}", f"{rng.choice(TOPICS)}",
         f"no {item(rng)} for the {first}", f"We need {rng.randint(2, 90)} {item(rng)}", f"{made_up(rng)} {second}")
    )  # fmt: skip


def login(rng: Random) -> str:
    first, last = name(FIRST, rng).lower(), name(LAST, rng).lower()
    user = rng.choice((f"{first}.{last}", f"{first[0]}{last}", f"{first}{rng.randint(1, 99)}", f"{first[0]}.{last}"))
    return rng.choice((user, f"{user}@{made_up(rng)}.{rng.choice(('com', 'org', 'net'))}"))


def whole(rng: Random) -> int:
    return rng.choice(
        (rng.randint(1, 12), rng.randint(2, 40), rng.randint(2, 99), rng.randint(100, 999), rng.randint(1, 9999))
    )


def decimal(rng: Random) -> float | int:
    return rng.choice(
        (whole(rng), round(rng.uniform(0, 40), 1), round(rng.uniform(1, 99), 1), round(rng.uniform(1, 2000), 2))
    )


VALUES = {
    "person": person, "place": place, "code": code, "date": date, "time": time, "item": item, "title": title, "note": note,
    "login": login, "whole": whole, "decimal": decimal, "word": lambda rng: rng.choice((rng.choice(TOPICS), made_up(rng))),
    "number": lambda rng: rng.randint(1, 99999),
}  # fmt: skip


def value(kind: str, rng: Random) -> str | int | float:
    """A value of one of the kinds in VALUES."""
    return VALUES[kind](rng)


def plural(noun: str) -> str:
    """By the rules that are mostly right."""
    if noun.endswith(("s", "x", "ch", "sh", "z")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"


def a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiouáéíóü' else 'a'} {noun}"


def noun(rng: Random) -> str:
    """What a tool is about: a known word, or one that nobody has seen."""
    return made_up(rng) if rng.random() < 0.25 else rng.choice(THINGS)
