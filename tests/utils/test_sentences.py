"""The starts of sentences in the languages of real notes. Doubtful starts are dropped."""

import pytest

from llama_index_contextual.utils.language import detect_language, sentence_starts

# "|" marks where a sentence starts.
SENTENCES = {
    "en": [
        "See e.g. the docs. |He left at 5 p.m. yesterday. |The U.S. Army came.",
        "Version 1.2 of it works. |Use v1.2. |Done.",
        (
            "J. R. R. Tolkien wrote it. |Open main.py now. |It went on... and on. |What?! "
            "|Yes. |Ask Dr. Smith."
        ),
        'She asked "Why?" and left. |It rained. |He said **no.** |Then he went.',
        "Put a `?` after it. |The `..` operator is one. |An `a. B` is code. |Next.",
        "Look! ![A screen. It shows](a.png) it. |Then fastapi.Response is made. |Done.",
        "Press a key and wait ... or do not. |✅ Works. |It works!\n|Next line.",
        'A <abbr title="First. Second">word</abbr> here. |Next.',
        "Steps to take\n|1. First of them. Then rest.\n|2. Second of them.",
    ],
    "es": [
        (
            "Use otra clave, p. ej. «nombre», y siga. |El Sr. Pérez y la Sra. Ruiz lo vieron "
            "en la pág. 3."
        ),
        (
            "Son aprox. 20 casos en EE. UU. y más. |¿Qué pasa? |¡Vamos! |Esto es lo que hay, "
            "etc. y no más."
        ),
        (
            "Revisa la sección _«¿Con prisa?»_ en la documentación. |Luego, sigue con J. "
            "García y no con el núm. 5."
        ),
        "La versión v1.2 del archivo main.py está en el disco. |La otra no.",
    ],
    "de": [
        (
            "Das ist z. B. ein Test mit der Nr. 5, d. h. nicht mehr. |Am 3. Mai und im 19. "
            "Jahrhundert war das so."
        ),
        (
            "Siehe Abb. 3 und vgl. Kap. 4 für die Daten, usw. und so weiter. |Dr. Müller ist "
            "da. |„Ist das so?“ fragte er."
        ),
    ],
    "fr": [
        (
            "M. Dupont et Mme Durand sont dans la salle, cf. p. ex. la page 3. |Et alors ? "
            "|Oui ! |Il part."
        ),
        "Il dit : « Oui. » |Puis il est dans la rue.",
        (
            "Une bonne stabilité, etc. pour les utilisateurs. |Consultez « Vous êtes pressés "
            "? » dans la page."
        ),
    ],
    "pt": [
        (
            "O Sr. Silva não está, veja p. ex. a pág. 3 ou aprox. 20 delas. |Mas você pode "
            "ver mais. |São uma por dia."
        )
    ],
    "it": [
        (
            "Il sig. Rossi non è qui, vedi p. es. la pag. 3 e il cap. 4. |Dott. Bianchi è "
            "con gli altri. |Questo si sa."
        )
    ],
    "ru": [
        "Это т. е. пример и т. д. для всех. |Он живёт в г. Москва. |Смотри рис. 3 и т. п. ниже. |Да."  # noqa: E501, RUF001
    ],
    "ja": [
        "これは文です。|次の文です！|「そうです。」と言った。|バージョン1.2です。|重要です。|続きます。"
    ],
    "zh": [
        "这是一句话。|这是第二句！|第三句？|“他说：好。”然后他走了。|请看“着急吗？”章节。|使用 main.py 文件。"  # noqa: E501, RUF001
    ],
    "ko": ["이것은 문장입니다. |_“급하신가요?”_ 섹션을 보세요. |두번째 문장입니다! |셋째?"],
    "hi": ["यह एक वाक्य है। |यह दूसरा वाक्य है॥ |तीसरा है।"],
    "ar": ["هل هذا صحيح؟ |نعم، هذا صحيح. |انتهى."],
    "ur": ["یہ ایک جملہ ہے۔ |یہ دوسرا جملہ ہے۔"],  # noqa: RUF001
}
CASES = [(language, marked) for language, listing in SENTENCES.items() for marked in listing]


@pytest.mark.parametrize(("language", "marked"), CASES)
def test_sentences(language, marked):
    text = marked.replace("|", "")
    starts = sentence_starts(text, 0, len(text), detect_language(text))
    parts = [text[a:b] for a, b in zip([0, *starts], [*starts, len(text)], strict=True)]
    assert parts == marked.split("|")


@pytest.mark.parametrize("language", ["de", "en", "es", "fr", "it", "pt", "ru"])
def test_the_language_of_a_paragraph_is_detected(language):
    assert detect_language(" ".join(SENTENCES[language])) == language


def test_words_of_another_language_do_not_decide():
    assert (
        detect_language(
            "En la página de «The Rust Programming Language» no está más que el índice."
        )
        == "es"
    )


def test_a_place_inside_the_document_is_counted_from_its_beginning():
    text = "# Title\n\nOne. Two."
    assert sentence_starts(text, 9, len(text), "en") == [14]


def test_a_sentence_with_a_lone_surrogate_starts_where_it_starts():
    assert sentence_starts("One \udfff here. Two there.", 0, 23, "en") == [12]
