"""The detection of languages. Short texts, code and names count as English in case of doubt."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llama_index_contextual.utils.language import detect_language

TEXTS = {
    "de": "Die Kündigung ist unwirksam, weil der Betriebsrat nicht angehört wurde.",
    "es": "Reunión con Pedro",
    "fr": "Comment faire pousser des tomates sur un balcon ?",
    "it": "Quanto costa un biglietto per Venezia?",
    "ja": "明日の天気はどうですか",
    "nl": "Wat is het hoogste gebouw van Rotterdam?",
    "pt": "Não sei qual é a melhor praia de Portugal.",
    "ru": "Как приготовить блины?",
    "zh": "怎么学习弹钢琴",
}
ENGLISH = [
    "When does the freeze start?",
    "TODO: running tests",
    "Caroline Miller",
    "getUserName",
    "git rebase -i",
    "North Sea wind",
    "def add(a, b):\n    return a + b",
    "Angela Merkel",
    "",
    "2026-04-09",
]


@pytest.mark.parametrize(("code", "text"), TEXTS.items())
def test_the_language_of_a_short_text(code, text):
    assert detect_language(text) == code


@pytest.mark.parametrize("text", ENGLISH)
def test_names_and_code_are_english(text):
    assert detect_language(text) == "en"


@pytest.mark.process
def test_a_plain_english_question_loads_no_detector():
    code = (
        "import sys; from llama_index_contextual.utils.language import detect_language;"
        "detect_language('how long does the gateway wait?'); detect_language('gateway timeout');"
        "sys.exit('fasttext' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
