"""The page's languages, by the code that browsers ask for."""

from wan_ui.words.chinese import CHINESE
from wan_ui.words.english import ENGLISH

LANGUAGES = {texts.language: texts for texts in (ENGLISH, CHINESE)}
