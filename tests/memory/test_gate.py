"""Which messages are worth a look into memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.keyword.dates import lexicon
from llama_index_contextual.memory.gate import gate

SKIPPED = {
    "slash command": [
        "/status",
        "/help",
        "/new",
        "/NEW",
        "/agent:writer do it",
        "/agent:*",
        "/model opus",
        "  /help  ",
        "/deploy the new site now",  # a command of some plug-in that nobody has listed
        "/newsletter",
        "/?",
    ],
    "greeting": [
        "hi",
        "Hello!",
        "hola",
        "¡Hola, buenos días!",
        "buenas tardes a todos",
        "como estas",  # as people type it
        "good morning, how are you?",
        "Good night everyone",
        "你好",
        "こんにちは",
    ],
    "thanks": [
        "thanks",
        "ｔｈａｎｋｓ",  # noqa: RUF001  full-width letters, as Japanese keyboards write them
        "Thanks a lot for your help!!",
        "thank you so much",
        "gracias",
        "Muchas gracias por todo",
        "谢谢你的帮助",
        "ありがとうございます",
    ],
    "acknowledgement": [
        "ok",
        "OK, thanks!",
        "okay great",
        "yes please",
        "sí",
        "vale, perfecto",
        "no",
        "Sounds good, go ahead",
        "got it 👍",
        "perfect, that makes sense",
        "de acuerdo, gracias",
        "claro que sí",
        "好的",
        "わかりました",
    ],
    "fewer than three words and no question": ["JC", "JC ginger", "fix it", "el jengibre", "会议", "明天见"],
    "no words outside code and digests": ["👍", "?!", "```python\nprint('JC likes ginger')\n```", "—"],
    "empty message": ["", " \n "],
}
ASKED = [
    "¿le gusta el jengibre a JC?",
    "does JC like ginger",
    "JC?",
    "JC birthday?",
    "¿y ayer?",
    "hi, what did JC order on the 5th",
    "thanks, and where does Marta live?",
    "ok let's book the flight to Lima",
    "no, the other one",
    "/newsletter: what did we decide?",  # the original skipped it because of /new
    "/etc/hosts is broken again",
    "perfect pitch is what JC has",
    "gracias a Marta tenemos casa",
    "杰西喜欢吃什么",
    "明天会议？",
    "好的，昨天我们说了什么",
    "제이씨는 생강을 좋아해요",
    "Thanks for the ginger recipe from Tuesday",
    "2026-10-22",
    "on 22.10.2026",
    "el lunes",
    "last week",
]


@pytest.mark.parametrize(
    ("reason", "message"), [(reason, message) for reason, messages in SKIPPED.items() for message in messages]
)
def test_trivial_messages_are_skipped_with_the_reason(reason, message):
    assert gate(message, lexicon()) == reason


@pytest.mark.parametrize("message", ASKED)
def test_what_could_profit_from_memory_is_asked(message):
    assert not gate(message, lexicon())


def test_an_earlier_digest_does_not_make_a_message():
    pasted = (
        "ok\n\n## Relevant prior context\n- [MEMORY.md#L22-L24] Color preference: blue\n- [a.md#L1] More words here\n"
    )
    assert gate(pasted, lexicon()) == "acknowledgement"


@given(st.text(max_size=300))
def test_any_message_gets_an_answer(message):
    assert gate(message, lexicon()) in {"", *SKIPPED}
