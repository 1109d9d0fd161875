"""What every room needs to know of a text: how it is read, where sentences start, its language, its dates.

``tokens`` counts what a model reads, and is imported by its own name, because a process that converts documents does
without it.
"""

from llama_index_contextual.text.dates import (
    DATE_LANGUAGES,
    NamedDate,
    date_from_heading,
    date_from_path,
    date_in_words,
    epoch_seconds,
    month_name,
    month_words,
    names_in_passing,
    parse_date,
    parse_day,
    take_dates,
    weekday_words,
)
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
    encoded_runs,
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
    without_runs,
    without_surrogates,
)
