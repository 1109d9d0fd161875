"""What sentence rules need to know of a text's language: which it is, and which full stops in it end nothing."""

from __future__ import annotations

import re
from typing import Final

# Frequent words that tell these languages apart: a paragraph that is long enough to be cut has several of them.
_WORDS: Final = {
    "de": "aber als auch auf das dem den der die ein eine für ist mit nicht oder sich sie und von werden wie wird zu",
    "en": "and are as be by can for from has if in is it not of on or that the this to was when which with you your",
    "es": "como con cuando de del el en es esta está las los más muy no para pero por puede que se si sin su una y",
    "fr": "au aux avec ce dans de des du elle est et il les mais ne ou pas plus pour que qui sont sur une vous votre",
    "it": "alla anche che con del della delle di dei e gli il nel non per più può quando questo si sono una è",
    "nl": "aan als bij dat de deze een en het je kan met naar niet of ook op te van voor wordt zijn",
    "pl": "ale być dla do i jak jest które nie od oraz po się są to w we z za że",
    "pt": "ao as com como da das de do dos e em essa isso mais mas na não os para pela por que se um uma você",
}
_SPEAK: Final[dict[str, list[str]]] = {}
for _code, _listing in _WORDS.items():
    for _word in _listing.split():
        _SPEAK.setdefault(_word, []).append(_code)
_KNOWN: Final = frozenset(_SPEAK)
_LEAST: Final = 2  # frequent words that a text must have to be of a language
_SAMPLE: Final = 1200  # characters read to tell a language
_PLAINLY_ENGLISH: Final = 250  # characters in which English has "the" at least once
_CYRILLIC: Final = re.compile("[\u0400-\u04ff]{3}")
_UKRAINIAN: Final = re.compile("[іїєґ]")
_DEVANAGARI: Final = re.compile("[\u0900-\u097f]{2}")

# Abbreviations that precede what they belong to, in lower case: those that sentencex 1.0 takes for a sentence's end.
_BEFORE_SOMETHING: Final = {
    "de": "abb abs abschn allg anm aufl bd bsp bspw ebd engl entspr geb gem ggü hrsg inkl insb insbes jh kap lat max "
    "mind tab tel tsd zzgl",
    "es": "aprox arts dña ee eds figs núms profa sras",
    "fr": "bibl lat liv max mlles mmes obs réf resp trad",
    "it": "figg nn num pag pagg prec sez succ tab",
    "nl": "afb excl incl mevr mw par tel",
    "pl": "godz im in inż lek max mgr pkt poz rozdz rys str św tab tel tj tzw ul woj zob",
    "pt": "aprox arts cap exa figs máx mín núm núms obs pág págs profa seç séc srta tel trad vol",
    "ru": "англ вып гл др им лат млн млрд напр обл прим рис см соч ср табл чел шт",  # noqa: RUF001  Cyrillic
    "uk": "англ гл див др лат мін пер прим рис стор табл ук утв шт",
}
ABBREVIATIONS: Final = {code: frozenset(listing.split()) for code, listing in _BEFORE_SOMETHING.items()}


def tell_language(text: str) -> str:
    """The ISO 639-1 code of a text's language; ``"en"`` where no other stands out that we have rules for.

    Args:
        text: A paragraph or more; its beginning is read.
    """
    text = text[:_SAMPLE]
    if text.count(" the ") * _PLAINLY_ENGLISH > len(text):  # most texts, so most need no more than this
        return "en"
    votes: dict[str, int] = {}
    for word in _KNOWN.intersection(text.lower().split()):
        for code in _SPEAK[word]:
            votes[code] = votes.get(code, 0) + 1
    best = max(votes, key=votes.__getitem__, default="en")
    if votes.get(best, 0) >= _LEAST and votes[best] > votes.get("en", 0):
        return best
    if text.isascii():
        return "en"
    if _CYRILLIC.search(text):
        return "uk" if _UKRAINIAN.search(text) else "ru"
    return "hi" if _DEVANAGARI.search(text) else "en"
