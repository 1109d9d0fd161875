"""Where the sentences of a text start.

sentencex finds them. Some of the places that it finds are inside a sentence all the same (after the mark in
"the ``?`` operator", after the "1." of a list, after an abbreviation that is not English). They are dropped here. One
boundary too few makes a longer sentence; one too many cuts a sentence. So a doubtful place is no boundary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

import sentencex

from llama_index_contextual.text.language import tell_language
from llama_index_contextual.text.normalize import replace_surrogates

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
_ABBREVIATIONS: Final = {code: frozenset(listing.split()) for code, listing in _BEFORE_SOMETHING.items()}

_segment: Callable[[str, str], list[str]] = sentencex.segment  # type: ignore[attr-defined]  # compiled, untyped
# sentencex is superlinear on one long CJK line (1 MB: 10.8 s), so it reads windows of this many characters.
_WINDOW: Final = 4000
_SPACE: Final = re.compile(r"\s+")
_CLOSING: Final = "*_~`)]}\"'\u2019\u201d»›」』）】》"  # noqa: RUF001  full width is meant
# sentencex ends a sentence between the full stop and the "**" or bracket that closes it. (German closes with the quote
# that English and Chinese open with.)
_CLOSERS: Final = re.compile(rf"(?:[{re.escape(_CLOSING)}]|\u201c(?!\w))+\s*")
_ANY_CLOSING: Final = _CLOSING + "\u201c"
_QUOTES: Final = frozenset(_ANY_CLOSING) - frozenset("*_~")
_WIDE: Final = frozenset("。！？｡．؟।॥۔")  # noqa: RUF001  marks that no white space need follow
_MARKS: Final = frozenset(".?!…？！")
_CORNERS: Final = frozenset("」』")
_GOES_ON: Final = frozenset(",;)]}%\u201d»、，；）」』")  # noqa: RUF001  no sentence starts with these
_LETTER: Final = re.compile(r"[^\W\d_]")
_MARKER: Final = re.compile(r"[\r\n][ \t>]*(?:[-*+][ \t]+)?\d{1,9}\.\Z")  # of a list's next item
_LAST_WORD: Final = re.compile(r"(?<![^\W_])([^\W_]+)\.\Z")
# "✨" after the full stop, up to the end of the line.
_TRAILING: Final = re.compile(r"[^\w\s>|<\[!#*+`\"'(-][^\w\n>|]{0,40}(?:\n\s*|\Z)")
_ATOM: Final = re.compile(r"``[^`]+(?:`[^`]+)*``|`[^`]+`|</?[a-zA-Z][^<>]*>")  # code, tags
_LOOK_BACK: Final = 40  # characters before a boundary that say whether it is one
_LONGEST_EMPHASIS: Final = 400  # characters in which what opens it is looked for
_ORDINALS: Final = frozenset({"de"})  # languages that write "am 3. Mai" and "im 19. Jahrhundert"
_LONGEST_ORDINAL: Final = 2
_FEW: Final = 3
_PLAIN: Final = re.compile(r"[^\W\d_][.?!] [A-Z]")  # in English nearly all boundaries are this clear


def sentence_starts(text: str, start: int, end: int, language: str = "") -> list[int]:
    """Return the ascending offsets in ``text[start:end]`` at which a sentence starts, but for ``start`` itself.

    Args:
        text: The document.
        start: Where to begin: the start of a sentence.
        end: Where to stop.
        language: An ISO 639-1 code; empty tells it from the text.
    """
    language = language or tell_language(text[start:end])
    boundaries: list[int] = []
    position = start
    while position < end:
        stop = min(end, position + _WINDOW)
        ends = [position + offset for offset in _ends(text[position:stop], language)]
        if stop < end and not ends:
            position = stop  # one sentence longer than a window: its end is for a later one to find
            continue
        boundaries.extend(ends)
        # the last sentence of a window may go on: the next window starts with it
        position = ends[-1] if stop < end else end
    candidates = sorted({offset for at in boundaries if start < (offset := _after_closers(text, at, end)) < end})
    return _true_starts(text, start, end, candidates, language)


def sentences_in(text: str) -> list[str]:
    """Return the sentences of a text; the end of a line ends one."""
    language, sentences = tell_language(text), list[str]()
    for line in filter(None, map(str.strip, text.splitlines())):
        starts = [0, *sentence_starts(line, 0, len(line), language)]
        sentences += [line[start:end].strip() for start, end in zip(starts, [*starts[1:], len(line)], strict=True)]
    return sentences


def _ends(window: str, language: str) -> list[int]:
    """Return the offsets between the sentences of a window, as sentencex finds them; it takes no lone surrogates."""
    window, _ = replace_surrogates(window)  # a letter for a letter
    parts = [part for part in _segment("en", window) if part]
    if "".join(parts) != window:
        return []
    ends = list(accumulate(map(len, parts[:-1])))
    if language == "en" or not ends:
        return ends
    # Its rules for other languages know their abbreviations and fewer of the rest, so only what both find counts.
    parts = [part for part in _segment(language, window) if part]
    if "".join(parts) != window or _uncapitalised(window, ends):  # the German ones end nothing before a small letter
        return ends
    theirs = set(accumulate(map(len, parts)))
    return [offset for offset in ends if offset in theirs]


def _uncapitalised(text: str, starts: list[int]) -> bool:
    """Return whether most sentences start with a small letter, as where somebody writes without capitals."""
    return sum(text[offset].islower() for offset in starts) * 2 > len(starts) > _FEW


def _after_closers(text: str, position: int, end: int) -> int:
    """Return the offset after closing marks and white space, as no sentence starts with them."""
    if not text[position - 1].isspace() and (closers := _CLOSERS.match(text, position, end)):
        if text[position - 1] in _WIDE and _opens(text, position, closers[0]):
            return position
        position = closers.end()
    space = _SPACE.match(text, position, end)
    return space.end() if space else position


def _opens(text: str, position: int, marks: str) -> bool:
    """Return whether marks of emphasis right after a wide full stop open something, as in ``。**重要`` (``**``)."""
    if marks.strip("*_"):
        return False
    low = max(0, position - _LONGEST_EMPHASIS)
    return text.count(marks, max(low, text.rfind("\n", low, position) + 1), position) % 2 == 0


def _true_starts(text: str, start: int, end: int, candidates: list[int], language: str) -> list[int]:
    """Return the candidates that no rule speaks against."""
    if not candidates:
        return candidates
    english = language == "en"
    lower_goes_on = not english and not _uncapitalised(text, candidates)
    atoms = _atoms(text, start, candidates[-1])
    low, high = next(atoms, (end, end))
    starts: list[int] = []
    first = seen = start  # where this sentence starts, and up to where no letter is in it
    for offset in candidates:
        at = offset - 2  # the sentence's last mark
        plain = english and _PLAIN.match(text, at - 1)
        if not plain:
            before = text[max(first, offset - _LOOK_BACK) : offset]
            bare = before.rstrip()
            sentence = bare.rstrip(_ANY_CLOSING)
            at = offset - len(before) + len(sentence) - 1
        while high <= at:
            low, high = next(atoms, (end, end))
        if low <= at:
            continue
        if not plain:
            letter = _LETTER.search(text, seen, offset)
            seen = letter.start() if letter else offset
            place = sentence, bare[len(sentence) :], before[len(bare) :], text[offset]
            if not letter or _goes_on(*place, lower_goes_on=lower_goes_on) or _abbreviates(*place, language):
                continue
            if trailing := _TRAILING.match(text, offset, end):
                offset = trailing.end()  # noqa: PLW2901  the sentence ends with its line
        if offset < end:
            starts.append(offset)
            first = seen = offset
    return starts


def _atoms(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Return the places of inline code and tags, in which no sentence ends."""
    if text.find("`", start, end) < 0 and text.find("<", start, end) < 0:
        return iter(())
    return (match.span() for match in _ATOM.finditer(text, start, end))


def _goes_on(sentence: str, closers: str, space: str, following: str, *, lower_goes_on: bool) -> bool:
    """Return whether a sentence goes on after what looks like its end.

    Args:
        sentence: Its end, up to its last mark.
        closers: What closes that: quotes, brackets, emphasis.
        space: The white space after it.
        following: The character after that.
        lower_goes_on: Whether it goes on before any small letter.
    """
    mark = sentence.rstrip()[-1:]
    if following in _GOES_ON or (not space and mark not in _WIDE):  # "![image](x)", "fastapi.Response"
        return True
    if space.count("\n") > 1 or not following.isalpha() or following.isupper():
        return False
    quoted = not _QUOTES.isdisjoint(closers)
    dots = sentence.endswith(("...", "…"))
    if following.islower():
        return quoted or dots or (lower_goes_on and mark in _MARKS)
    # A letter without case: "「はい。」と言った" goes on, and so does what follows a quoted question.
    return dots or (quoted and (mark in _MARKS or not _CORNERS.isdisjoint(closers)))


def _abbreviates(sentence: str, closers: str, space: str, following: str, language: str) -> bool:
    """Return whether the full stop belongs to an abbreviation, an ordinal, or the marker of a list's next item."""
    word = None if closers else _LAST_WORD.search(sentence)
    if word is None:
        return False
    if word[1].isdecimal():
        if "\n" not in space and _MARKER.search(sentence):
            return True
        return language in _ORDINALS and len(word[1]) <= _LONGEST_ORDINAL and following.isalnum()
    return language != "en" and (len(word[1]) == 1 or word[1].lower() in _ABBREVIATIONS.get(language, ()))
