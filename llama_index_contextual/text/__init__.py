"""What every room needs to know of a text: how it is read, where sentences start, its language, its dates.

``dates`` and ``tokens`` are imported by their own names: a process that converts documents counts no tokens.
"""

from llama_index_contextual.text.language import (
    LANGUAGE_NAMES,
    caseless,
    fold,
    languages_in_words,
    listed_stop_words,
    normalise,
    resolve_language,
    sample_of,
    sentence_starts,
    sentences_in,
    shares_of_languages,
    stop_words,
    tell_language,
)
from llama_index_contextual.text.normalize import (
    CODE,
    KEYWORD_SUFFIXES,
    MARKDOWN_SUFFIXES,
    MARKDOWN_TYPE,
    SOURCE_SUFFIXES,
    UTF16_MARKS,
    WIKI_LINK,
    counted,
    decode,
    inline_tags,
    is_markdown,
    lines_of,
    plain_digits,
    printable,
    readable,
    replace_surrogates,
    short_hash,
    storable,
    without_code,
    without_comments,
    without_surrogates,
)
