"""Describe scenes in varied English, for prompts and for the tokenizer's corpus. A speed is in quotes: "FAST"."""

from __future__ import annotations

import random

from training.world import Scene

SIZE_WORDS = {"small": ("small", "small", "little", "tiny"), "large": ("large", "large", "big", "huge")}
SHAPE_WORDS = {
    "circle": ("circle", "circle", "circle", "disc"),
    "square": ("square", "square", "square", "box"),
    "triangle": ("triangle",),
    "star": ("star", "star", "star", "five-pointed star"),
}
BACKGROUND_WORDS = {
    "black": ("black",),
    "grey": ("grey", "gray"),
    "navy": ("navy", "navy", "navy blue"),
    "dark green": ("dark green",),
}
VERBS = (
    ("moves", "moving"),
    ("moves", "moving"),
    ("moves", "moving"),
    ("drifts", "drifting"),
    ("slides", "sliding"),
    ("glides", "gliding"),
    ("floats", "floating"),
    ("travels", "travelling"),
    ("goes", "going"),
    ("flies", "flying"),
)
DIRECTION_WORDS = {
    "left": ("left", "left", "to the left", "leftwards", "towards the left"),
    "right": ("right", "right", "to the right", "rightwards", "towards the right"),
    "up": ("up", "up", "upwards", "upward", "to the top"),
    "down": ("down", "down", "downwards", "downward", "to the bottom"),
    "up-left": (
        "up and to the left",
        "up and left",
        "diagonally up and to the left",
        "to the upper left",
        "towards the top left",
    ),
    "up-right": (
        "up and to the right",
        "up and right",
        "diagonally up and to the right",
        "to the upper right",
        "towards the top right",
    ),
    "down-left": (
        "down and to the left",
        "down and left",
        "diagonally down and to the left",
        "to the lower left",
        "towards the bottom left",
    ),
    "down-right": (
        "down and to the right",
        "down and right",
        "diagonally down and to the right",
        "to the lower right",
        "towards the bottom right",
    ),
}
CHANGES = {  # finite form, participle
    "still": (
        ("stands still", "standing still"),
        ("stays still", "staying still"),
        ("stays in place", "staying in place"),
        ("rests", "resting"),
        ("is still", "still"),
        ("does not move", "not moving"),
    ),
    "growing": (
        ("grows", "growing"),
        ("grows larger", "growing larger"),
        ("gets bigger", "getting bigger"),
        ("expands", "expanding"),
    ),
    "shrinking": (
        ("shrinks", "shrinking"),
        ("shrinks away", "shrinking away"),
        ("gets smaller", "getting smaller"),
        ("becomes smaller", "becoming smaller"),
    ),
}
QUOTES = ('"{}"', '"{}"', "“{}”")
QUOTED = ("{sentence}, {quoted}", "{sentence} {quoted}", "{quoted}: {sentence}", "{quoted} {sentence}")
SILENT = ("{}, silent", "{}, silent", "{} in silence", "{}, without a sound", "silent: {}")
FIGURES = ("it", "it", "the figure", "the figure", "a figure", "a shape", "the shape", "one", "安娜", "小狗")
LETTERS = "bcdfghklmnprstvwyz"  # first letters of the syllables of invented names
OPENINGS = ("", "", "", "", "a video of ", "an animation of ", "a clip of ", "footage of ")


def describe(scene: Scene, rng: random.Random, detail: float = 1.0) -> str:
    """Write an English sentence for the scene. `detail` is the probability of each clause."""
    return compose(scene, rng, detail)[0]


def compose(scene: Scene, rng: random.Random, detail: float = 1.0) -> tuple[str, dict[str, str]]:
    """Write a sentence for the scene. Return it with the properties that it states."""
    chance = {"colour": detail, "motion": detail, "background": detail, "size": 0.65, "shape": 1.0}
    stated = {name: getattr(scene, name) for name, share in chance.items() if rng.random() < share}
    subject = _subject(scene, rng, stated)
    finite, participle = _motion(scene.motion, rng) if "motion" in stated else ("", "")
    place = _place(scene, rng) if "background" in stated else ""
    sentence = _typeset(" ".join(_arrange(subject, finite, participle, place, rng).split()), rng)
    if scene.is_silent:
        stated["sound"] = "silent"
        sentence = rng.choice(SILENT).format(sentence.removesuffix("."))
    if scene.speed is not None and rng.random() < detail:
        stated["speed"] = scene.speed
        sentence = rng.choice(QUOTED).format(sentence=sentence, quoted=rng.choice(QUOTES).format(scene.speed))
    return sentence, stated


def describe_look(scene: Scene, rng: random.Random) -> str:
    """Write a sentence with only colour, shape and background."""
    stated = {"colour": scene.colour, "shape": scene.shape}
    return _typeset(f"{_subject(scene, rng, stated)} {_place(scene, rng)}", rng).removesuffix(".")


def describe_figure(scene: Scene, rng: random.Random, figure: str, detail: float = 1.0) -> str:
    """Write a sentence for a scene with a reference image: `figure` replaces colour, shape and size."""
    finite, participle = _motion(scene.motion, rng) if rng.random() < detail else ("", "")
    place = _place(scene, rng) if rng.random() < detail else ""
    return _typeset(" ".join(_arrange(figure, finite, participle, place, rng).split()), rng)


def figure_words(rng: random.Random) -> str:
    """Return a name for the shape of a reference image: a word that does not describe its look, or an invented name."""
    if rng.random() < 0.4:
        return rng.choice(FIGURES)
    name = "".join(rng.choice(LETTERS) + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) + rng.choice(("", *LETTERS))
    return rng.choice(("", "", "the ", "a ")) + (name.capitalize() if rng.random() < 0.5 else name)


def _subject(scene: Scene, rng: random.Random, stated: dict[str, str]) -> str:
    shape = rng.choice(SHAPE_WORDS[scene.shape])
    size = rng.choice(SIZE_WORDS[scene.size]) if "size" in stated else ""
    colour = stated.get("colour", "")
    phrase = " ".join(word for word in (size, colour, shape) if word)
    article = rng.choice(("a", "a", "a", "one", "the"))
    if article == "a" and phrase[0] in "aeiou":
        article = "an"
    return f"{article} {phrase}"


def _motion(motion: str, rng: random.Random) -> tuple[str, str]:
    if motion in CHANGES:
        return rng.choice(CHANGES[motion])
    finite, participle = rng.choice(VERBS)
    direction = rng.choice(DIRECTION_WORDS[motion])
    return f"{finite} {direction}", f"{participle} {direction}"


def _place(scene: Scene, rng: random.Random) -> str:
    colour = rng.choice(BACKGROUND_WORDS[scene.background])
    preposition = rng.choice(("on", "on", "over", "against", "in front of"))
    return f"{preposition} a {colour} {rng.choice(('background', 'background', 'background', 'backdrop'))}"


def _arrange(subject: str, finite: str, participle: str, place: str, rng: random.Random) -> str:
    form = rng.randrange(6)
    if form == 0:
        return f"{subject} {finite} {place}"
    if form == 1 and place:
        return f"{place}, {subject} {finite}"
    if form == 2:
        return f"{subject} {place}, {participle}" if participle else f"{subject} {place}"
    if form == 3:
        return f"{subject} {'that ' + finite if finite else ''} {place}"
    return f"{rng.choice(OPENINGS)}{subject} {participle} {place}"


def _typeset(sentence: str, rng: random.Random) -> str:
    sentence = sentence.strip(" ,")
    if rng.random() < 0.4:
        sentence = sentence[0].upper() + sentence[1:]
    return sentence + ("." if rng.random() < 0.3 else "")
