"""What is spoken: three lengths, because the real-time factor does not scale flatly with length.

A short text pays the start-up of its first chunk, a long one carries text and audio history from sentence to sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

_LINE = "The quick brown fox jumps over the lazy dog by the river."

_PARAGRAPH = (
    "Every morning the baker opens his shop before the sun is up.",
    "He lights the oven, weighs the flour and listens to the rain on the roof.",
    "By six o'clock the first loaves are ready, and the whole street smells of warm bread.",
    "Children stop at the window on their way to school and count the buns.",
    "When the last customer has gone, he sweeps the floor and sets the dough for tomorrow.",
)

_SCRIPT = (
    "Welcome to our short walk through the old harbour.",
    "Please stay close together, since the stones can be slippery.",
    "The tall house on your left was built for a merchant who traded in salt.",
    "He never learned to swim.",
    "From his attic he could see every ship that came in from the north.",
    "Across the water you will notice a red crane.",
    "It has not moved for thirty years, and a pair of storks now lives on top of it.",
    "Why does nobody take it down?",
    "The answer is simple: the town voted to keep it.",
    "Let us go on to the fish market.",
    "On Fridays it opens at five in the morning and closes when everything is sold.",
    "The women who worked here had a language of their own, full of jokes that no stranger understood.",
    "A few of their songs were written down by a teacher in the last century.",
    "Listen to the bell.",
    "It rings once for a boat that leaves and twice for a boat that comes home.",
    "During the great storm it rang for two days without a pause.",
    "Every boat returned, and the bell was given a new rope and a coat of paint.",
    "Our walk ends at the lighthouse, where you may climb the stairs if you like.",
    "There are one hundred and twelve steps.",
    "Thank you for your company, and mind your head on the way out!",
)


@dataclass(frozen=True)
class Case:
    """One text to speak."""

    name: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


CASES = (Case("line", (_LINE,)), Case("paragraph", _PARAGRAPH), Case("script", _SCRIPT))
