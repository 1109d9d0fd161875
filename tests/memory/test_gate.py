"""The messages that need memory, and those that do not."""
# ruff: noqa: RUF001

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.memory.gate import (
    MAX_MESSAGE,
    clean_message,
    is_question,
    parse_message,
    reason_to_skip,
)
from llama_index_contextual.retrievers.query_dates import lexicon_of, load_lexicon

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
        "ｔｈａｎｋｓ",  # full-width letters, as Japanese keyboards write them
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
    "fewer than three words and no question": [
        "JC",
        "JC ginger",
        "fix it",
        "el jengibre",
        "会议",
        "明天见",
    ],
    "no words outside code and digests": [
        "👍",
        "?!",
        "```python\nprint('JC likes ginger')\n```",
        "—",
    ],
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

NEEDS_NONE = """
hi there
hey!
ok
okay thanks
thx
👍
😂😂
🙏 thanks
haha
hahaha
lol
lmao
see you tomorrow
see you tomorrow!
good night
brb
ttyl
np
cool, thanks
great job
sounds good
nice one
will do
happy birthday!
congrats!
sorry
my bad
no worries
welcome back
yes!
nope
:)
^^
...
danke dir
bis morgen
haha ja
alles gut
guten Morgen zusammen
gracias
jajaja
hasta mañana
hasta luego
de nada
vale
muchas gracias, hasta luego
merci
à demain
bonne nuit
mdr
d'accord merci
de rien
grazie
a domani
buonanotte
ahahah
va bene
prego
dank je
tot morgen
welterusten
prima
haha oke
obrigado
até amanhã
boa noite
kkkk
valeu
tudo bem
спасибо
до завтра
спокойной ночи
хаха
ок
пока
谢谢
哈哈哈
明天见
晚安
好的好的
收到
辛苦了
ありがとう
おやすみ
お疲れ様です
また明日
笑
了解です
www
you too
same here
have fun
have a great weekend
merry christmas
happy new year
schönes Wochenende
buen fin de semana
bon week-end
buon weekend
fijn weekend
bom fim de semana
хороших выходных
周末愉快
良い週末を
"""
NEEDS_MEMORY = """
where did we park
what's the wifi password
remind me of Ana's address
who is Priya
what did the doctor say
JC's birthday?
the rent is 1200 now
I moved to Lisbon last week
book the same hotel again
do I like ginger?
wifi password?
what about the timeout
yesterday
last Friday?
any news from Marta
thanks, what was the address again
ok and the budget?
Wo ist der Schlüssel?
Wann hat Ana Geburtstag?
Wie hoch ist die Miete
und gestern?
Passwort vom Router?
¿dónde vive Marta?
¿cuándo es la boda?
la clave del wifi
y ayer?
où est la clé ?
le mot de passe du wifi
quand est l'anniversaire d'Ana ?
dove vive Marta?
la password del wifi
quando è il compleanno di Ana
waar woont Marta?
het wachtwoord van de wifi
onde mora a Marta?
a senha do wifi
где живёт Марта?
пароль от вайфая
когда день рождения Ани
玛尔塔住在哪里
无线密码是多少
安娜的生日是什么时候
マルタはどこに住んでいますか
Wi-Fiのパスワードは？
アナの誕生日はいつ
你好，昨天说了什么？
hi, what did we decide?
haha, what was that joke about the cat
see you tomorrow at the office in Lima
I'm allergic to peanuts
"""


@pytest.mark.parametrize(
    ("reason", "message"),
    [(reason, message) for reason, messages in SKIPPED.items() for message in messages],
)
def test_trivial_messages_are_skipped_with_the_reason(reason, message):
    assert reason_to_skip(message, load_lexicon()) == reason


@pytest.mark.parametrize("message", ASKED)
def test_messages_that_could_need_memory_pass_the_gate(message):
    assert not reason_to_skip(message, load_lexicon())


@pytest.mark.parametrize("message", NEEDS_NONE.strip().splitlines())
def test_everyday_small_talk_needs_no_memory(message):
    assert reason_to_skip(message, lexicon_of(message))


@pytest.mark.parametrize("message", NEEDS_MEMORY.strip().splitlines())
def test_short_questions_and_news_need_memory_in_any_language(message):
    assert not reason_to_skip(message, lexicon_of(message))


def test_words_that_are_no_small_talk_of_their_own_are_too_few():
    assert (
        reason_to_skip("everyone again", load_lexicon()) == "fewer than three words and no question"
    )
    assert reason_to_skip("thanks everyone again", load_lexicon()) == "thanks"


def test_an_earlier_digest_alone_is_not_a_message():
    pasted = "ok\n\n## Relevant prior context\n- [MEMORY.md#L22-L24] Color preference: blue\n- [a.md#L1] More words here\n"  # noqa: E501
    assert reason_to_skip(pasted, load_lexicon()) == "acknowledgement"


def test_text_after_an_earlier_digest_is_read():
    pasted = "## Relevant prior context\n- [a.md#L1] Tea\n\nAnd what of coffee?\n- [ ] Milk"
    assert clean_message(pasted) == "And what of coffee?\n- [ ] Milk"


@given(st.text(max_size=300))
def test_any_message_gets_an_answer(message):
    assert reason_to_skip(message, load_lexicon()) in {"", *SKIPPED}


def test_a_long_message_is_cut_after_a_whole_word():
    cut = clean_message("harbours " * 300)
    assert cut.endswith(" harbours")
    assert 1_000 - len("harbours ") <= len(cut) <= 1_000
    assert clean_message("x" * 2_000) == "x" * 1_000
    assert clean_message("tea " + "x" * 2_000) == "tea " + "x" * 996
    thousand = "a" * 600 + " " + "b" * 399
    assert clean_message(f"{thousand} and more") == thousand
    assert clean_message(thousand) == thousand
    assert clean_message(f"{thousand}b and more") == "a" * 600
    lines = thousand.replace(" ", "\n")
    assert clean_message(f"{lines}\nand more") == lines


def test_only_the_first_characters_of_a_message_are_read():
    assert (
        reason_to_skip(" " * MAX_MESSAGE + "where does Marta work?", load_lexicon())
        == "empty message"
    )


@pytest.mark.parametrize(
    ("text", "asks"),
    [("かばんを買った。", False), ("かばんを買いましたか。", True), ("我吗啡过敏", False)],
)
def test_a_particle_only_makes_a_question_at_the_end(text, asks):
    assert is_question(text) == asks


@pytest.mark.parametrize(
    ("message", "has_subject"),
    [
        ("what did we do yesterday?", False),
        ("what did b do yesterday?", False),
        ("what did JC do yesterday?", True),
        ("昨天做了什么？", False),
    ],
)
def test_a_single_letter_is_not_a_subject(message, has_subject):
    parsed = parse_message(message, lexicon_of(message), date(2026, 4, 10))
    assert parsed.has_subject == has_subject


def test_inline_code_is_not_a_fence():
    assert clean_message("```tea``` at four?\nOr five?") == "```tea``` at four?\nOr five?"
    assert clean_message("```sh\nmake tea\n```\nOr five?") == "Or five?"
    assert clean_message("~~~\nmake tea\n```\nmore\n~~~\nOr five?") == "Or five?"
    assert clean_message("```\nmake tea\n```sh\nmore\n```\nOr five?") == "Or five?"


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        ("What did we decide about retries?", "retries?"),
        ("what did we do yesterday?", "yesterday?"),
        ("who's the nurse?", "nurse?"),
        ("what did we do?", "what did we do?"),  # there is nothing else
    ],
)
def test_stop_words_are_not_a_subject(message, subject):
    assert parse_message(message, lexicon_of(message), date(2026, 4, 10)).subject == subject
