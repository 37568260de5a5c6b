"""The languages that the studio speaks, by the code that browsers ask for."""

from wan_ui.text import ENGLISH
from wan_ui.text_chinese import CHINESE

LANGUAGES = {"en": ENGLISH, "zh": CHINESE}
