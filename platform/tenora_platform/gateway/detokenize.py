"""From token ids to text, one token at a time and without ever decoding a byte twice.

A stream is a UTF-8 decoder that is fed the bytes of its tokens: a character whose bytes are spread over several tokens
comes out with its last byte, whole.
"""

from __future__ import annotations

import codecs

from tenora_adapters.token_bytes import TokenBytes


class Detokenizer:
    """The text of one choice, as it grows."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; "" while one is still unfinished.

        Bytes that no continuation can make valid give U+FFFD, as the whole text decoded at once would. A
        character left unfinished at the end of the answer is dropped.
        """
        return self._utf8.decode(self._token_bytes[token_id])
