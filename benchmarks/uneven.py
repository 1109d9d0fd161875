"""An uneven folder: thirty short notes beside one large document, and questions whose answers are in the notes.

Half of the questions share hardly a word with their note. The notes are made up; the large document is pages of
``kubernetes-docs`` joined into one file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from datasets import kubernetes_docs

if TYPE_CHECKING:
    from pathlib import Path

MEGABYTE: Final = 1_000_000

NOTES: Final[dict[str, str]] = {
    "allergies.md": "# People\n\nTomasz is allergic to cashews and pistachios. Keep them out of the cake on Friday.",
    "bicycle.md": "# Bicycle\n\nFrame number WSBC4471Y. The lock is a Kryptonite with two keys; one is at my sister's.",
    "birthday.md": "# Presents\n\nMum would like the blue teapot from the shop in Harbour Street.",
    "boiler.md": "# Boiler\n\nServiced by Ewa on 3 March. Below one bar, open the left valve slowly.",
    "books.md": "# Reading\n\nLent 'The Peregrine' to Iris. Still to read: 'Austerlitz', and the one on lighthouses.",
    "car.md": "# Car\n\nWinter tyres are in the cellar of the garage in Mill Lane. Change them in November.",
    "cat.md": "# Cat\n\nMiso gets half a tablet for her thyroid each morning, hidden in tuna.",
    "coffee.md": "# Coffee\n\nThe grinder at 14, eighteen grams in, thirty-six out, twenty-eight seconds.",
    "dentist.md": "# Dentist\n\nDr Okafor wants to see the upper left molar again in six months. The crown is old.",
    "drone.md": "# Drone\n\nIt is 249 grams with the small battery, so no licence is needed.",
    "flat.md": "# Flat\n\nThe lease ends on 30 September. Notice has to be in writing, three months before.",
    "garden.md": "# Garden\n\nThe tomatoes by the wall had blight. Next year put beans there.",
    "guests.md": "# Guests\n\nThe spare key is with the baker downstairs. Towels are in the chest under the window.",
    "guitar.md": "# Guitar\n\nStrings 11-52. The second song needs the sixth string down a tone.",
    "hike.md": "# Hike\n\nThe path along the ridge is closed until June because of falling rocks.",
    "insurance.md": "# Insurance\n\nThe policy pays for water damage, but the first 300 are ours.",
    "interview.md": "# Interviews\n\nLeila was the strongest of the five. She can start in May, four days a week.",
    "knee.md": "# Knee\n\nThe physiotherapist says: no running for three weeks, swimming is fine.",
    "ladder.md": "# Borrowed\n\nThe ladder belongs to the neighbours on the second floor.",
    "language.md": "# Portuguese\n\nClass moved to Thursdays at seven, room 12. Bring the red exercise book.",
    "lunch.md": "# Lunch\n\nThe place by the canal is shut on Mondays. Their soup has celery in it.",
    "parcel.md": "# Parcel\n\nThe courier left it with the pharmacy; the slip has the number 88-214.",
    "party.md": "# Party\n\nAndrea does not drink. Have the elderflower one in the fridge.",
    "passport.md": "# Passport\n\nMine expires in February. Photos from the machine at the station were refused.",
    "piano.md": "# Piano\n\nThe tuner comes on the 12th at nine and takes cash only.",
    "printer.md": "# Printer\n\nIt only works when the laptop is on the other wifi, the one with the long name.",
    "school.md": "# School\n\nNora has to be picked up at one on Wednesdays, because the choir is off.",
    "sourdough.md": "# Bread\n\nThe starter likes rye. Feed it on Sunday night and bake before work.",
    "train.md": "# Trains\n\nThe night train to Vienna has no dining car any more. Buy something before.",
    "wine.md": "# Wine\n\nThe white one that everybody liked was a Furmint from Tokaj, 2019.",
}

PARAPHRASED: Final[dict[str, str]] = {
    "nuts intolerance of a colleague": "allergies.md",
    "who has the second copy of what opens my cycle's chain?": "bicycle.md",
    "gift idea for my mother": "birthday.md",
    "what do I do if the heating loses water?": "boiler.md",
    "which novel did I give to a friend?": "books.md",
    "where do I keep the rubber for snow?": "car.md",
    "how does the pet take her medicine?": "cat.md",
    "recipe for an espresso": "coffee.md",
    "which tooth is being watched?": "dentist.md",
    "how heavy is the quadcopter?": "drone.md",
    "until when may I cancel the rental contract?": "flat.md",
    "what went wrong with the vegetables?": "garden.md",
    "how do visitors get in when I am away?": "guests.md",
    "how is the instrument tuned for the next piece?": "guitar.md",
    "can we walk in the mountains in spring?": "hike.md",
    "what do I pay myself after a leak?": "insurance.md",
    "which candidate should we hire?": "interview.md",
    "what sport may I do with my injury?": "knee.md",
    "whom do I give the steps back to?": "ladder.md",
    "when is my evening course?": "language.md",
    "which restaurant is closed at the start of the week?": "lunch.md",
    "where can I collect what I ordered?": "parcel.md",
    "what do I offer somebody who avoids alcohol?": "party.md",
    "do my travel documents need renewal?": "passport.md",
    "how do I have to pay the man who mends the keys?": "piano.md",
    "why can't I get anything on paper?": "printer.md",
    "when does my daughter finish in the middle of the week?": "school.md",
    "what flour does the dough ferment with?": "sourdough.md",
    "is there food on the sleeper?": "train.md",
    "what was the Hungarian bottle called?": "wine.md",
}

WORDED: Final[dict[str, str]] = {
    "frame number of the bicycle": "bicycle.md",
    "what does Mum want from Harbour Street?": "birthday.md",
    "who serviced the boiler?": "boiler.md",
    "when do I change the winter tyres?": "car.md",
    "how many grams of coffee?": "coffee.md",
    "what does Dr Okafor want to see?": "dentist.md",
    "does the drone need a licence?": "drone.md",
    "when does the lease end?": "flat.md",
    "where are the towels?": "guests.md",
    "why is the path along the ridge closed?": "hike.md",
    "when can Leila start?": "interview.md",
    "what does the physiotherapist say about running?": "knee.md",
    "when does the tuner come?": "piano.md",
}


def large_document(size: int = 5 * MEGABYTE) -> str:
    """Return pages of ``kubernetes-docs`` as one text of about so many characters."""
    pages, length = [], 0
    for page in kubernetes_docs().documents[""]:
        if length >= size:
            break
        pages.append(page.text)
        length += len(page.text)
    return "\n\n".join(pages)


def write_folder(folder: Path, size: int = 5 * MEGABYTE) -> None:
    """Write the notes and the large document beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in NOTES.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
    (folder / "handbook.md").write_text(large_document(size), encoding="utf-8")
