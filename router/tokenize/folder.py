"""The tokenizer of a served model: `tokenizer.json` and the chat template in its folder. The text is first split at
special tokens (`<|im_start|>` and the like). The text between two special tokens is tokenized separately and cached, so
in a growing conversation only new messages cost time. Tokenizers that fail a test of this receive whole prompts.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import tokenizers
import xxhash

from router.contract.model_layers import layers
from router.tokenize import Prompt
from router.tokenize.template import Template, model_config
from router.tokenize.tokenizer import NotTokenized, given_ids, packed

QUICK_BYTES = 256  # takes about 100 µs, like a thread switch
CACHE_BYTES = 64_000_000
_ENTRY_BYTES = 200
_PROBES = ("", "a", " a", "a ", "\n", " \n a", "A b", "é", "日本", "1234", "don't", "\tx", "  two", "end.")


class FolderTokenizer:
    def __init__(
        self, folder: Path, cache_bytes: int = CACHE_BYTES, template: Callable[[Path], Template] = Template
    ) -> None:
        """Load the tokenizer, and the chat template in the way its engine uses it. Raise OSError or ValueError for an
        unusable folder."""
        file = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no specific exception
            raise ValueError(f"{file}: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = template(folder)
        self.unsalted = self._template.unsalted
        self.attention_chunk, self.forgetful = layers(model_config(folder))
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes
        self._before = packed(self._tokenizer.encode("").ids)  # token ids at the beginning of every plain prompt
        self.special = self._cuts()  # tokens after which prompts are split; None: prompts stay whole
        if not all(self.whole(text) == b"".join(self._encoded(self._pieces(text))) for text in self._samples()):
            self.special = None

    def is_quick(self, prompt: Prompt) -> bool:
        return len(prompt.rendered) <= QUICK_BYTES or prompt.token_ids is not None

    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        if api_path != "/v1/completions":
            tokens = self.text_tokens(self._template.prompt(prompt.document, api_path))
            # For other requests, the template itself writes the beginning
            return self._before + tokens if api_path in self._template.plain_beginning else tokens
        if prompt.document.get("add_special_tokens") is False:
            raise NotTokenized("add_special_tokens: only the engine can apply it")
        if prompt.document.get("truncate_prompt_tokens") is not None:
            raise NotTokenized("truncate_prompt_tokens: only the engine can apply it")
        ids = given_ids(prompt.document)
        if ids is not None:
            return ids
        text = prompt.document.get("prompt")
        if not isinstance(text, str):
            raise NotTokenized("prompt: missing")
        return self._before + self.text_tokens(text)

    def text_tokens(self, text: str) -> bytes:
        """Return the tokens of a text, without the tokens that the tokenizer puts around it."""
        pieces = self._pieces(text)
        keys = [xxhash.xxh3_128_digest(piece.encode("utf-8", "surrogatepass")) for piece in pieces]
        with self._lock:
            known = [self._known(key) for key in keys]
        missing = [place for place, tokens in enumerate(known) if tokens is None]
        for place, tokens in zip(missing, self._encoded([pieces[place] for place in missing]), strict=True):
            known[place] = tokens
            with self._lock:
                self._keep(keys[place], tokens)
        return b"".join(tokens for tokens in known if tokens is not None)

    def whole(self, text: str) -> bytes:
        """Like `text_tokens`, without pieces and cache."""
        return self._encoded([text])[0]

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        """Encode as a batch, because only batches release the GIL."""
        try:
            return [packed(one.ids) for one in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError):
            raise NotTokenized("the prompt contains a lone surrogate") from None

    def _pieces(self, text: str) -> list[str]:
        """Split the text; each piece except the last ends with a special token."""
        if self.special is None:
            return [text]
        ends = [0, *(found.end() for found in self.special.finditer(text)), len(text)]
        return [text[start:end] for start, end in pairwise(ends) if end > start]

    def _known(self, key: bytes) -> bytes | None:
        tokens = self._cache.get(key)
        if tokens is not None:
            self._cache.move_to_end(key)
        return tokens

    def _keep(self, key: bytes, tokens: bytes) -> None:
        if key in self._cache:
            return
        self._cache[key] = tokens
        self._cached_bytes += len(tokens) + _ENTRY_BYTES
        while self._cached_bytes > self._cache_bytes:
            _, gone = self._cache.popitem(last=False)
            self._cached_bytes -= len(gone) + _ENTRY_BYTES

    def _cuts(self) -> "re.Pattern[str] | None":
        """Return the pattern of special tokens after which a text can be cut; None if one of them absorbs adjacent
        text."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        names = [token.content for token in added]
        safe = [
            token.content
            for token in added
            if token.special
            and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
            and not any(token.content in name for name in names if name != token.content)
        ]
        return re.compile("|".join(map(re.escape, sorted(safe, key=len, reverse=True)))) if safe else None

    def _samples(self) -> list[str]:
        if self.special is None:
            return []
        special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()][:16]
        return [before + token + after for token in special for before in _PROBES for after in _PROBES]
