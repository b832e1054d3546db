"""Prompts with a trace's lengths and prefix identity: equal block ids give equal texts. A three-letter word and its
space are four bytes, which make one token for the sim's tokenizer, and about one for a real tokenizer.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from controlplane.evidence.traces.types import TraceRequest

WORD_BYTES = 4
_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see "
    "two way who boy did its let put say she too use act add age ago aid aim air arm art ask bad bag bar bat bed "
    "bet big bit box bus buy cap car cat cow cry cup cut dad die dig dog dot dry due ear eat egg end eye fan far "
    "fat few fig fit fix fly fog fun gap gas gym hat hay hen hid hip hit hot hug ice ill ink jam jar jaw jet job "
    "jog joy key kid kit lab lap law lay leg lid lie lip log lot low mad map mat may men met mix mob mom mud net "
    "nod nor nut oak odd off oil own pad pan pay pen pet pie pig pin pit pop pot pub ran rat raw red rib rid rip "
    "rob rod row rub run sad sat saw sea set sew shy sin sip sit six sky sly son sow spy sum sun tab tag tan tap "
    "tax tea ten tie tin tip toe ton top toy try tub van war web wet why win wit won yes yet zoo ace amp ant ape "
    "ash bay bee bow bug bun cab cob cod dam den dim dip ego elf elm era fee fin fur gem gum hub hut ivy jug mug "
    "oat owl paw pea pod ram ray rug rye gin sap sir ski "
)
WORDS = tuple(b" " + word.encode() for word in _WORDS.split())  # a word for each byte value


@lru_cache(maxsize=4_096)
def text_of(key: str, size: int) -> bytes:
    """Return `size` bytes of words that depend only on `key`; a shorter text is a prefix of a longer one with the same
    key."""
    words = -(-size // WORD_BYTES)
    digest = hashlib.shake_128(key.encode()).digest(words)
    return b"".join(map(WORDS.__getitem__, digest))[:size]


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes prompts for an engine whose tokenizer turns `bytes_per_token` bytes into one token."""

    salt: str = ""  # different for each run, so that runs on one pool share no prefix
    bytes_per_token: float = float(WORD_BYTES)

    def write(self, request: TraceRequest) -> str:
        """Join the texts of the blocks, cut or extended to the request's length."""
        size = round(request.input_tokens * self.bytes_per_token)
        block = round(request.block_tokens * self.bytes_per_token)
        parts = [text_of(f"{self.salt}b{block_id}", block) for block_id in request.block_ids()]
        text = b"".join(parts)[:size]
        if len(text) < size:
            text += text_of(f"{self.salt}r{request.session}:{request.index}", size - len(text))
        return text.decode("ascii")
