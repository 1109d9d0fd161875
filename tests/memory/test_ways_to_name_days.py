"""The ways to write a day, a month or a range in each language, read on Friday 10 April 2026."""
# ruff: noqa: RUF001

from __future__ import annotations

from datetime import date

import pytest

from llama_index_contextual.retrievers.query_dates import find_dates, lexicon_of

TODAY = date(2026, 4, 10)

WAYS = """
en | what did we decide on 1/21? | 2026-01-21
en | what happened on 12/31? | 2025-12-31
en | notes from 3/5 | 2026-03-05
en | what happened in Q3 2025? | 2025-07-01/2025-09-30
en | what happened in 2025-Q3? | 2025-07-01/2025-09-30
en | revenue of Q3/2025 | 2025-07-01/2025-09-30
en | what did we ship in week 41 of 2025? | 2025-10-06/2025-10-12
en | summarise 2025-W41 | 2025-10-06/2025-10-12
en | the plan for 2025-H2 | 2025-07-01/2025-12-31
en | revenue in Q4 | 2025-10-01/2025-12-31
en | what did we ship in the third quarter of 2025? | 2025-07-01/2025-09-30
en | third quarter 2025 | 2025-07-01/2025-09-30
en | what was planned for last quarter? | 2026-01-01/2026-03-31
en | this quarter | 2026-04-01/2026-06-30
en | what did I do Monday? | 2026-04-06
en | what did we talk about Monday morning? | 2026-04-06
en | who called on Tuesday night | 2026-04-07
en | March 2025 | 2025-03-01/2025-03-31
en | what did I write in mid-March? | 2026-03-01/2026-03-31
en | at the end of February | 2026-02-01/2026-02-28
en | at the beginning of March | 2026-03-01/2026-03-31
en | what did we do in Jan? | 2026-01-01/2026-01-31
en | since February | 2026-02-01/2026-02-28
en | what did I note in January | 2026-01-01/2026-01-31
en | what did we spend in 2024? | 2024-01-01/2024-12-31
en | what were the goals for 2025 | 2025-01-01/2025-12-31
en | from 2024 | 2024-01-01/2024-12-31
en | 21 Jan 2025 | 2025-01-21
en | Jan 21st | 2026-01-21
en | last Monday | 2026-04-06
en | a week ago | 2026-03-30/2026-04-05
en | the week of March 9 | 2026-03-09
en | the past two weeks | 2026-03-23/2026-04-10
en | over the last month | 2026-03-01/2026-03-31
en | earlier this week | 2026-04-06/2026-04-12
en | yesterday evening | 2026-04-09
de | was war am 21.1.? | 2026-01-21
de | was haben wir am 21.1. beschlossen? | 2026-01-21
de | was war am 21.01. | 2026-01-21
de | Was geschah am 31.12.? | 2025-12-31
de | Was steht im Protokoll vom 3.3.? | 2026-03-03
de | Was steht im Bericht der KW 41/2025? | 2025-10-06/2025-10-12
de | Umsatz in Q3 2025 | 2025-07-01/2025-09-30
de | was war im dritten Quartal 2025? | 2025-07-01/2025-09-30
de | Was haben wir im 3. Quartal 2025 verkauft? | 2025-07-01/2025-09-30
de | was war im letzten Quartal geplant? | 2026-01-01/2026-03-31
de | im ersten Quartal | 2026-01-01/2026-03-31
de | Was habe ich im Januar gemacht? | 2026-01-01/2026-01-31
de | Januar 2025 | 2025-01-01/2025-01-31
de | was war Mitte März? | 2026-03-01/2026-03-31
de | Ende Februar | 2026-02-01/2026-02-28
de | Anfang März | 2026-03-01/2026-03-31
de | was haben wir letzte Woche gemacht? | 2026-03-30/2026-04-05
de | vor zwei Wochen | 2026-03-23/2026-03-29
de | in den letzten zwei Wochen | 2026-03-23/2026-04-10
de | Was habe ich am Montag notiert? | 2026-04-06
de | was war Montag? | 2026-04-06
de | letzten Montag | 2026-04-06
de | am Montagabend | 2026-04-06
de | gestern Abend | 2026-04-09
de | was haben wir 2024 ausgegeben? | 2024-01-01/2024-12-31
de | Ziele für 2025 | 2025-01-01/2025-12-31
de | im Jahr 2024 | 2024-01-01/2024-12-31
de | im letzten Jahr | 2025-01-01/2025-12-31
de | was war diese Woche? | 2026-04-06/2026-04-12
de | heute Morgen | 2026-04-10
de | am 5. März | 2026-03-05
de | am 5. März 2025 | 2025-03-05
de | letztes Wochenende | 2026-04-04/2026-04-05
de | vorige Woche | 2026-03-30/2026-04-05
de | letzten Monat | 2026-03-01/2026-03-31
es | ¿qué pasó el 21/1? | 2026-01-21
es | ¿qué decidimos el 31/12? | 2025-12-31
es | ¿qué decidimos el 21 de enero? | 2026-01-21
es | notas del 3 de marzo | 2026-03-03
es | ¿qué pasó en el tercer trimestre de 2025? | 2025-07-01/2025-09-30
es | ventas del T3 2025 | 2025-07-01/2025-09-30
es | en el Q3 de 2025 | 2025-07-01/2025-09-30
es | el trimestre pasado | 2026-01-01/2026-03-31
es | en el primer trimestre | 2026-01-01/2026-03-31
es | ¿qué hice en enero? | 2026-01-01/2026-01-31
es | en enero de 2025 | 2025-01-01/2025-01-31
es | a mediados de marzo | 2026-03-01/2026-03-31
es | a finales de febrero | 2026-02-01/2026-02-28
es | a principios de marzo | 2026-03-01/2026-03-31
es | la semana pasada | 2026-03-30/2026-04-05
es | hace dos semanas | 2026-03-23/2026-03-29
es | las últimas dos semanas | 2026-03-23/2026-04-10
es | el lunes pasado | 2026-04-06
es | ¿qué hicimos el lunes por la mañana? | 2026-04-06
es | ayer por la tarde | 2026-04-09
es | esta mañana | 2026-04-10
es | ¿cuánto gastamos en 2024? | 2024-01-01/2024-12-31
es | objetivos de 2025 | 2025-01-01/2025-12-31
es | el año pasado | 2025-01-01/2025-12-31
es | esta semana | 2026-04-06/2026-04-12
es | este mes | 2026-04-01/2026-04-30
es | el 5 de marzo del 2025 | 2025-03-05
es | el fin de semana pasado | 2026-04-04/2026-04-05
es | el mes pasado | 2026-03-01/2026-03-31
es | desde febrero | 2026-02-01/2026-02-28
fr | que s'est-il passé le 21/1 ? | 2026-01-21
fr | qu'avons-nous décidé le 21/01 ? | 2026-01-21
fr | notes du 3 mars | 2026-03-03
fr | que s'est-il passé au troisième trimestre 2025 ? | 2025-07-01/2025-09-30
fr | les ventes du T3 2025 | 2025-07-01/2025-09-30
fr | au 3e trimestre 2025 | 2025-07-01/2025-09-30
fr | le trimestre dernier | 2026-01-01/2026-03-31
fr | au premier trimestre | 2026-01-01/2026-03-31
fr | qu'est-ce que j'ai fait en janvier ? | 2026-01-01/2026-01-31
fr | en janvier 2025 | 2025-01-01/2025-01-31
fr | à la mi-mars | 2026-03-01/2026-03-31
fr | fin février | 2026-02-01/2026-02-28
fr | début mars | 2026-03-01/2026-03-31
fr | la semaine dernière | 2026-03-30/2026-04-05
fr | il y a deux semaines | 2026-03-23/2026-03-29
fr | ces deux dernières semaines | 2026-03-23/2026-04-10
fr | lundi dernier | 2026-04-06
fr | qu'a-t-on fait lundi matin ? | 2026-04-06
fr | hier soir | 2026-04-09
fr | ce matin | 2026-04-10
fr | combien avons-nous dépensé en 2024 ? | 2024-01-01/2024-12-31
fr | objectifs pour 2025 | 2025-01-01/2025-12-31
fr | l'année dernière | 2025-01-01/2025-12-31
fr | l'an dernier | 2025-01-01/2025-12-31
fr | cette semaine | 2026-04-06/2026-04-12
fr | ce mois-ci | 2026-04-01/2026-04-30
fr | le 5 mars 2025 | 2025-03-05
fr | le week-end dernier | 2026-04-04/2026-04-05
fr | le mois dernier | 2026-03-01/2026-03-31
fr | depuis février | 2026-02-01/2026-02-28
fr | le 1er mars | 2026-03-01
it | cosa è successo il 21/1? | 2026-01-21
it | cosa abbiamo deciso il 21 gennaio? | 2026-01-21
it | note del 3 marzo | 2026-03-03
it | cosa è successo nel terzo trimestre 2025? | 2025-07-01/2025-09-30
it | nel terzo trimestre del 2025 | 2025-07-01/2025-09-30
it | vendite del Q3 2025 | 2025-07-01/2025-09-30
it | lo scorso trimestre | 2026-01-01/2026-03-31
it | nel primo trimestre | 2026-01-01/2026-03-31
it | cosa ho fatto a gennaio? | 2026-01-01/2026-01-31
it | nel gennaio 2025 | 2025-01-01/2025-01-31
it | a metà marzo | 2026-03-01/2026-03-31
it | a fine febbraio | 2026-02-01/2026-02-28
it | all'inizio di marzo | 2026-03-01/2026-03-31
it | la settimana scorsa | 2026-03-30/2026-04-05
it | due settimane fa | 2026-03-23/2026-03-29
it | nelle ultime due settimane | 2026-03-23/2026-04-10
it | lunedì scorso | 2026-04-06
it | cosa abbiamo fatto lunedì mattina? | 2026-04-06
it | ieri sera | 2026-04-09
it | stamattina | 2026-04-10
it | quanto abbiamo speso nel 2024? | 2024-01-01/2024-12-31
it | obiettivi per il 2025 | 2025-01-01/2025-12-31
it | l'anno scorso | 2025-01-01/2025-12-31
it | questa settimana | 2026-04-06/2026-04-12
it | questo mese | 2026-04-01/2026-04-30
it | il 5 marzo 2025 | 2025-03-05
it | lo scorso fine settimana | 2026-04-04/2026-04-05
it | il mese scorso | 2026-03-01/2026-03-31
it | da febbraio | 2026-02-01/2026-02-28
nl | wat gebeurde er op 21/1? | 2026-01-21
nl | wat hebben we op 21-1 besloten? | 2026-01-21
nl | wat hebben we op 21 januari besloten? | 2026-01-21
nl | notities van 3 maart | 2026-03-03
nl | wat gebeurde er in het derde kwartaal van 2025? | 2025-07-01/2025-09-30
nl | omzet in Q3 2025 | 2025-07-01/2025-09-30
nl | vorig kwartaal | 2026-01-01/2026-03-31
nl | in het eerste kwartaal | 2026-01-01/2026-03-31
nl | wat heb ik in januari gedaan? | 2026-01-01/2026-01-31
nl | in januari 2025 | 2025-01-01/2025-01-31
nl | half maart | 2026-03-01/2026-03-31
nl | eind februari | 2026-02-01/2026-02-28
nl | begin maart | 2026-03-01/2026-03-31
nl | vorige week | 2026-03-30/2026-04-05
nl | twee weken geleden | 2026-03-23/2026-03-29
nl | de afgelopen twee weken | 2026-03-23/2026-04-10
nl | afgelopen maandag | 2026-04-06
nl | wat deden we maandagochtend? | 2026-04-06
nl | gisteravond | 2026-04-09
nl | vanochtend | 2026-04-10
nl | hoeveel hebben we in 2024 uitgegeven? | 2024-01-01/2024-12-31
nl | doelen voor 2025 | 2025-01-01/2025-12-31
nl | vorig jaar | 2025-01-01/2025-12-31
nl | deze week | 2026-04-06/2026-04-12
nl | deze maand | 2026-04-01/2026-04-30
nl | op 5 maart 2025 | 2025-03-05
nl | afgelopen weekend | 2026-04-04/2026-04-05
nl | vorige maand | 2026-03-01/2026-03-31
nl | sinds februari | 2026-02-01/2026-02-28
pt | o que aconteceu no dia 21/1? | 2026-01-21
pt | o que decidimos em 21/01? | 2026-01-21
pt | o que decidimos em 21 de janeiro? | 2026-01-21
pt | notas de 3 de março | 2026-03-03
pt | o que aconteceu no terceiro trimestre de 2025? | 2025-07-01/2025-09-30
pt | vendas do 3º trimestre de 2025 | 2025-07-01/2025-09-30
pt | vendas do T3 2025 | 2025-07-01/2025-09-30
pt | no trimestre passado | 2026-01-01/2026-03-31
pt | no primeiro trimestre | 2026-01-01/2026-03-31
pt | o que eu fiz em janeiro? | 2026-01-01/2026-01-31
pt | em janeiro de 2025 | 2025-01-01/2025-01-31
pt | em meados de março | 2026-03-01/2026-03-31
pt | no final de fevereiro | 2026-02-01/2026-02-28
pt | no início de março | 2026-03-01/2026-03-31
pt | na semana passada | 2026-03-30/2026-04-05
pt | há duas semanas | 2026-03-23/2026-03-29
pt | nas últimas duas semanas | 2026-03-23/2026-04-10
pt | na segunda-feira passada | 2026-04-06
pt | o que fizemos na segunda de manhã? | 2026-04-06
pt | ontem à noite | 2026-04-09
pt | hoje de manhã | 2026-04-10
pt | quanto gastamos em 2024? | 2024-01-01/2024-12-31
pt | metas para 2025 | 2025-01-01/2025-12-31
pt | no ano passado | 2025-01-01/2025-12-31
pt | esta semana | 2026-04-06/2026-04-12
pt | este mês | 2026-04-01/2026-04-30
pt | 5 de março de 2025 | 2025-03-05
pt | no fim de semana passado | 2026-04-04/2026-04-05
pt | no mês passado | 2026-03-01/2026-03-31
pt | desde fevereiro | 2026-02-01/2026-02-28
ru | что было 21.01? | 2026-01-21
ru | что мы решили 21.1.? | 2026-01-21
ru | что мы решили 21 января? | 2026-01-21
ru | заметки от 3 марта | 2026-03-03
ru | что было в третьем квартале 2025 года? | 2025-07-01/2025-09-30
ru | выручка за 3 квартал 2025 | 2025-07-01/2025-09-30
ru | в прошлом квартале | 2026-01-01/2026-03-31
ru | в первом квартале | 2026-01-01/2026-03-31
ru | что я делал в январе? | 2026-01-01/2026-01-31
ru | в январе 2025 | 2025-01-01/2025-01-31
ru | в середине марта | 2026-03-01/2026-03-31
ru | в конце февраля | 2026-02-01/2026-02-28
ru | в начале марта | 2026-03-01/2026-03-31
ru | на прошлой неделе | 2026-03-30/2026-04-05
ru | две недели назад | 2026-03-23/2026-03-29
ru | за последние две недели | 2026-03-23/2026-04-10
ru | в прошлый понедельник | 2026-04-06
ru | что мы делали в понедельник утром? | 2026-04-06
ru | вчера вечером | 2026-04-09
ru | сегодня утром | 2026-04-10
ru | сколько мы потратили в 2024 году? | 2024-01-01/2024-12-31
ru | цели на 2025 год | 2025-01-01/2025-12-31
ru | в прошлом году | 2025-01-01/2025-12-31
ru | на этой неделе | 2026-04-06/2026-04-12
ru | в этом месяце | 2026-04-01/2026-04-30
ru | 5 марта 2025 | 2025-03-05
ru | на прошлых выходных | 2026-04-04/2026-04-05
ru | в прошлом месяце | 2026-03-01/2026-03-31
ru | с февраля | 2026-02-01/2026-02-28
zh | 1月21日我们决定了什么？ | 2026-01-21
zh | 1月21号开了什么会 | 2026-01-21
zh | 1/21 的会议 | 2026-01-21
zh | 2025年第三季度的收入 | 2025-07-01/2025-09-30
zh | 2025年三季度 | 2025-07-01/2025-09-30
zh | 2025年Q3的销售 | 2025-07-01/2025-09-30
zh | 上个季度 | 2026-01-01/2026-03-31
zh | 上季度 | 2026-01-01/2026-03-31
zh | 第一季度 | 2026-01-01/2026-03-31
zh | 一月份做了什么 | 2026-01-01/2026-01-31
zh | 2025年1月 | 2025-01-01/2025-01-31
zh | 三月中旬 | 2026-03-01/2026-03-31
zh | 二月底 | 2026-02-01/2026-02-28
zh | 三月初 | 2026-03-01/2026-03-31
zh | 上周做了什么 | 2026-03-30/2026-04-05
zh | 上个星期 | 2026-03-30/2026-04-05
zh | 两周前 | 2026-03-23/2026-03-29
zh | 最近两周 | 2026-03-23/2026-04-10
zh | 过去三天 | 2026-04-07/2026-04-10
zh | 周一开了什么会 | 2026-04-06
zh | 星期一早上 | 2026-04-06
zh | 昨晚 | 2026-04-09
zh | 今天早上 | 2026-04-10
zh | 今早 | 2026-04-10
zh | 2024年花了多少钱 | 2024-01-01/2024-12-31
zh | 去年 | 2025-01-01/2025-12-31
zh | 前年 | 2024-01-01/2024-12-31
zh | 这周 | 2026-04-06/2026-04-12
zh | 本月 | 2026-04-01/2026-04-30
zh | 这个月 | 2026-04-01/2026-04-30
zh | 2025年3月5日 | 2025-03-05
zh | 三月五日 | 2026-03-05
zh | 上周末 | 2026-04-04/2026-04-05
zh | 上个月 | 2026-03-01/2026-03-31
zh | 3月以来 | 2026-03-01/2026-03-31
zh | 三天前 | 2026-04-07
ja | 1月21日に何を決めましたか | 2026-01-21
ja | 1/21の会議 | 2026-01-21
ja | 2025年第3四半期の売上 | 2025-07-01/2025-09-30
ja | 2025年の第三四半期 | 2025-07-01/2025-09-30
ja | 2025年Q3の売上 | 2025-07-01/2025-09-30
ja | 前四半期 | 2026-01-01/2026-03-31
ja | 第1四半期 | 2026-01-01/2026-03-31
ja | 1月に何をしましたか | 2026-01-01/2026-01-31
ja | 2025年1月 | 2025-01-01/2025-01-31
ja | 3月中旬 | 2026-03-01/2026-03-31
ja | 2月末 | 2026-02-01/2026-02-28
ja | 3月上旬 | 2026-03-01/2026-03-31
ja | 先週何をしましたか | 2026-03-30/2026-04-05
ja | 2週間前 | 2026-03-23/2026-03-29
ja | ここ2週間 | 2026-03-23/2026-04-10
ja | 過去3日間 | 2026-04-07/2026-04-10
ja | 月曜日に何をしましたか | 2026-04-06
ja | 月曜の朝 | 2026-04-06
ja | 昨晩 | 2026-04-09
ja | 今朝 | 2026-04-10
ja | 2024年にいくら使いましたか | 2024-01-01/2024-12-31
ja | 去年 | 2025-01-01/2025-12-31
ja | 昨年 | 2025-01-01/2025-12-31
ja | 一昨年 | 2024-01-01/2024-12-31
ja | 今週 | 2026-04-06/2026-04-12
ja | 今月 | 2026-04-01/2026-04-30
ja | 2025年3月5日 | 2025-03-05
ja | 先週末 | 2026-04-04/2026-04-05
ja | 先月 | 2026-03-01/2026-03-31
ja | 3日前 | 2026-04-07
ja | きのう | 2026-04-09
ja | 昨日の夜 | 2026-04-09
"""

NO_DAYS = """
add 1/2 cup of sugar
is support open 24/7?
it got 4/5 stars
9/11 memorial
what is the price of 2000 shares?
who paid 1999 euro for the bike?
a budget of 2000 euros
the second half of the film
first quarter moon
the third quarter of the game
Was kostet die Miete von 2000 Euro?
die ersten 3 Kapitel
Wir haben 2000 Euro bezahlt
Wir hatten 1950 Teilnehmer
Version 21.1. ist da
Kapitel 3.3 lesen
im Zimmer 3.12
Wie hoch ist der Preis von 21.12 Euro?
¿cuánto es 3/4 de litro?
la segunda parte del libro
el tercer piso
receta con 1/2 taza
le 3e chapitre
la seconde partie
une demi-heure
il terzo piano
il secondo capitolo del libro
de tweede helft van de wedstrijd
het eerste hoofdstuk
o segundo capítulo
a segunda vez que fomos
a quarta parte do livro
a quinta edição do livro
второй этаж дома
версия 21.01 вышла
цена 10.05 рублей
в третьем доме
二分之一
第三章
我们的周期
三季
四半期報告書の書き方
第二章
一番いい店
JC may come
march to the top
what sun cream do we use?
who sat next to Ana?
Black Friday deals in the shop
Monday to Friday opening hours
the sunday roast recipe
how to use q1 and q2 in Excel
Wie lange dauert die Fahrt morgens?
i numeri da 3 a 5
the score was 3 to 5
between 3 and 10 people
zwischen 3 und 10 Personen
pages 3-5
kitchen half and half
week 12 of the pregnancy
der Mai ist gekommen
April 0
0 April budget
report of March 00 2026
2026-00-10
am 0. April
4月0日
0月4日
"""


@pytest.mark.parametrize(
    ("language", "text", "days"), [line.split(" | ") for line in WAYS.strip().splitlines()]
)
def test_days_are_read_in_the_ways_that_people_write_them(language, text, days):
    named = find_dates(text, TODAY, lexicon_of(text))
    assert ["/".join(dict.fromkeys(map(str, period[:2]))) for period in named] == [days], language


@pytest.mark.parametrize("text", NO_DAYS.strip().splitlines())
def test_text_that_only_looks_like_a_day_is_not_one(text):
    assert find_dates(text, TODAY, lexicon_of(text)) == ()
