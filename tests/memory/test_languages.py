"""The bundled languages have the same keys in every file, and their messages are understood."""

from __future__ import annotations

from collections import Counter
from datetime import date

import pytest

from llama_index_contextual.memory.gate import reason_to_skip
from llama_index_contextual.retrievers.query_dates import (
    FURTHER_LANGUAGES,
    LANGUAGES,
    MEANINGS,
    find_dates,
    lexicon_of,
    load_lexicon,
)

TODAY = date(2026, 4, 10)  # a Friday
SPACED = [code for code in (*LANGUAGES, *FURTHER_LANGUAGES) if code not in {"zh", "ja"}]

SMALL_TALK = {
    "greeting": [
        "Guten Morgen!",
        "Bonjour",
        "Buongiorno a tutti",
        "Hoe gaat het?",
        "Tudo bem?",
        "Добрый день!",
    ],
    "thanks": [
        "Vielen Dank!",
        "Merci beaucoup",
        "Grazie mille!",
        "Dank je wel",
        "Muito obrigada!",
        "Большое спасибо",
    ],
    "acknowledgement": [
        "Alles klar",
        "d'accord",
        "va bene, perfetto",
        "prima, ga door",
        "tá bom",
        "да, хорошо",
    ],
}
ASKED = [
    "Was haben wir gestern besprochen?",
    "Qu'est-ce qu'on a décidé pour le jardin ?",
    "Dove sono le chiavi di Marta?",
    "Wat is het wachtwoord van de router?",
    "Onde fica o hotel de Lisboa?",
    "Где лежит договор аренды?",
]
DAYS = [
    ("was war gestern?", "2026-04-09", "2026-04-09"),
    ("letzten Freitag", "2026-04-03", "2026-04-03"),
    ("was geschah am 21. Januar?", "2026-01-21", "2026-01-21"),
    ("o que fiz ontem?", "2026-04-09", "2026-04-09"),
    ("两天前发生了什么事", "2026-04-08", "2026-04-08"),
    ("星期二发生了什么", "2026-04-07", "2026-04-07"),
    ("火曜日に何がありましたか", "2026-04-07", "2026-04-07"),
    ("二日前に何がありましたか", "2026-04-08", "2026-04-08"),
    ("Was haben wir gestern über den Garten besprochen?", "2026-04-09", "2026-04-09"),
    ("Was haben wir vorgestern mit der Werkstatt vereinbart?", "2026-04-08", "2026-04-08"),
    ("Wer hat am Montag wegen der Heizung angerufen?", "2026-04-06", "2026-04-06"),
    ("Was wurde am 5. März 2025 beschlossen?", "2025-03-05", "2025-03-05"),
    ("Welche Rechnungen kamen im März für das Haus?", "2026-03-01", "2026-03-31"),
    ("Was haben wir letzte Woche über die Reise gesagt?", "2026-03-30", "2026-04-05"),
    ("Wo waren wir vor drei Tagen mit den Kindern?", "2026-04-07", "2026-04-07"),
    ("Qu'est-ce que nous avons décidé hier pour le jardin ?", "2026-04-09", "2026-04-09"),
    ("Qui a appelé lundi dernier pour le chauffage ?", "2026-04-06", "2026-04-06"),
    ("Que s'est-il passé il y a deux jours avec la voiture ?", "2026-04-08", "2026-04-08"),
    ("Quelles factures sont arrivées en février 2026 pour nous ?", "2026-02-01", "2026-02-28"),
    ("Che cosa abbiamo deciso ieri per il giardino?", "2026-04-09", "2026-04-09"),
    ("Chi ha chiamato il 5 marzo per la caldaia?", "2026-03-05", "2026-03-05"),
    ("Dove siamo andati la settimana scorsa con i bambini?", "2026-03-30", "2026-04-05"),
    ("Wat hebben we gisteren over de tuin besloten?", "2026-04-09", "2026-04-09"),
    ("Wie heeft er afgelopen maandag over de verwarming gebeld?", "2026-04-06", "2026-04-06"),
    ("Wat hebben we drie dagen geleden met de garage afgesproken?", "2026-04-07", "2026-04-07"),
    ("O que nós decidimos ontem sobre o jardim?", "2026-04-09", "2026-04-09"),
    ("Quem ligou no dia 5 de março para falar da caldeira?", "2026-03-05", "2026-03-05"),
    ("Onde estivemos na semana passada com as crianças?", "2026-03-30", "2026-04-05"),
    ("Что мы решили вчера насчёт сада?", "2026-04-09", "2026-04-09"),
    ("Кто звонил в понедельник по поводу отопления?", "2026-04-06", "2026-04-06"),
    ("Что было 5 марта 2025 года на даче?", "2025-03-05", "2025-03-05"),
    ("Где мы были на прошлой неделе летом?", "2026-03-30", "2026-04-05"),
]


@pytest.mark.parametrize("code", SPACED)
def test_every_language_has_every_kind_of_words(code):
    words = load_lexicon((code,))
    assert {*words.phrases.values()} == {"greeting", "thanks", "acknowledgement", "filler"}
    assert len(words.stop_words) > 100
    counts = Counter(words.numbers.values())
    assert all(counts[number] >= 2 for number in range(1, 7)), "the months and the weekdays"
    assert all(counts[number] >= 1 for number in range(7, 13)), "the months"
    assert set(words.units.values()) == {"day", "week", "weekend", "month", "quarter", "year"}
    [ways] = words.date_patterns
    assert {pattern.meaning for pattern in ways.patterns} >= set(MEANINGS.values()), (
        "the ways to name a day"
    )


@pytest.mark.parametrize(
    ("reason", "message"), [(kind, text) for kind, texts in SMALL_TALK.items() for text in texts]
)
def test_small_talk_needs_no_memory_in_any_language(reason, message):
    assert reason_to_skip(message, lexicon_of(message)) == reason


@pytest.mark.parametrize("message", ASKED)
def test_questions_need_memory_in_any_language(message):
    assert not reason_to_skip(message, lexicon_of(message))


@pytest.mark.parametrize(("text", "first", "last"), DAYS)
def test_questions_name_days_in_their_language(text, first, last):
    [named] = find_dates(text, TODAY, lexicon_of(text))
    assert (named.first.isoformat(), named.last.isoformat()) == (first, last)


def test_a_word_only_means_a_day_in_its_own_language():
    for text in (
        "Was liegt hier in der Schublade von Herrn Meier?",
        "Wat ligt hier op de tafel van de buren?",
    ):
        assert find_dates(text, TODAY, lexicon_of(text)) == ()
    for text in ("mardi gras in New Orleans", "mars 2020 rover", "去天津玩", "日本語の本"):
        assert find_dates(text, TODAY, lexicon_of(text)) == ()
