"""Text to token ids and back, chat templates, and text that grows token by token.

`Tokenizer.from_folder(folder)` reads a checkpoint folder's `tokenizer.json` (through the `tokenizers`
library) and, where they are there, `tokenizer_config.json` and `chat_template.jinja`. Templates come with the
checkpoint, so they run in Jinja's immutable sandbox. `IncrementalDetokenizer` turns a growing list of ids
into pieces of text that add up to the decoded whole and never hold half a character. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
MAX_TOKENIZER_BYTES = 1 << 28
MAX_TEMPLATE_BYTES = 1 << 20

# A panic of the library is a BaseException that is no Exception and none of these: it would end the thread.
_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_REPLACEMENT = "\ufffd"
# A decoder may look this many tokens back when it joins the next one (spaces, word pieces, digits).
_CONTEXT_TOKENS = 6
# After so many tokens without a complete character, what can no longer become one is handed out.
_MAX_HELD_TOKENS = 16
# A character has at most four bytes: so many at the end, each at worst a U+FFFD, may still become one.
_MAX_UNSURE = 3
# Tokens without text between the bytes of a character make the window grow, up to this.
_MAX_WINDOW = 256


class Tokenizer:
    """The tokenizer of a checkpoint. Encoding adds no special tokens of its own unless asked to."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._special = dict(special_tokens or {})
        self._template = None if chat_template is None else _compile(chat_template)
        self._vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """ValueError, naming the file, if `tokenizer.json` is missing or one of the files is no good."""
        folder = Path(folder)
        text = _read(folder / TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
        if text is None:
            raise ValueError(f"{folder / TOKENIZER_FILE}: no such regular file")
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except _EXITS:
            raise
        except BaseException as error:  # the library raises nothing more specific, and panics besides
            raise ValueError(f"{folder / TOKENIZER_FILE}: not a tokenizer: {error}") from error
        # Files may ask for both, for batches in training; a prompt must come out as long as it is.
        backend.no_truncation()
        backend.no_padding()
        config = _json_object(folder / CONFIG_FILE)
        template = _read(folder / TEMPLATE_FILE, MAX_TEMPLATE_BYTES)
        if template is None:
            template = _template_of_config(folder / CONFIG_FILE, config.get("chat_template"))
        special = {
            name: _token_text(config.get(name))
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        return cls(
            backend,
            chat_template=template,
            special_tokens={k: v for k, v in special.items() if v is not None},
        )

    @property
    def vocab_size(self) -> int:
        """The largest token id + 1, added tokens included; not every id below it need have a token."""
        return self._vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be called."""
        return self._template is not None

    def token_id(self, token: str) -> int | None:
        """The id of a token given literally (such as "<eos>"), None if there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`. Special tokens spelled out in the text are recognised. ValueError for a text
        that UTF-8 cannot say (it has a lone surrogate), or if the library panics.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            alone = text[error.start]
            raise ValueError(
                f"text must hold characters only, got the lone surrogate {alone!r} at {error.start}"
            ) from None
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (Exception, *_EXITS):
            raise
        except BaseException as panic:
            raise ValueError(f"the tokenizer cannot encode this text: {panic}") from panic
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; ids without a token give nothing. ValueError for what is no
        id, or if the library panics.
        """
        try:
            text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise ValueError(f"token_ids must be ints in [0, 2**32 - 1]: {error}") from error
        except (Exception, *_EXITS):
            raise
        except BaseException as panic:
            raise ValueError(f"the tokenizer cannot decode these tokens: {panic}") from panic
        return text

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of a conversation. ValueError without a template, or if it refuses or fails."""
        if self._template is None:
            raise ValueError("this checkpoint has no chat template: send a prompt instead of messages")
        known = self._special | variables
        try:
            return self._template.render(
                messages=[dict(m) for m in messages], add_generation_prompt=add_generation_prompt, **known
            )
        except (
            jinja2.TemplateError,
            ArithmeticError,
            LookupError,
            AttributeError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise ValueError(f"chat template: {error}") from error


class Decoder(Protocol):
    """The part of a tokenizer that growing text needs; `Tokenizer` has it."""

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""
        ...


class IncrementalDetokenizer:
    """Text of a growing output, piece by piece; the pieces of `push` and of the last `flush` add up to it.

    A piece never ends inside a character: bytes that may still become one are held back until it is complete,
    until they are clearly invalid, or until `flush`. The cost of a token does not grow with the output.
    """

    def __init__(self, tokenizer: Decoder, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []  # the last tokens: those before say nothing about what comes
        self._ends: list[int] = [0]  # numbers of tokens in `_ids` that gave a complete text, ascending
        self._sent = 0  # characters of the text of `_ids` that were handed out
        self._held = 0  # tokens since something was handed out

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these further tokens complete ("" if none)."""
        pieces = []
        for token_id in token_ids:
            self._ids.append(token_id)
            self._held += 1
            pieces.append(self._advance(final=False))
        return "".join(pieces)

    def flush(self) -> str:
        """What is still held back, incomplete characters as U+FFFD. Call it when the output has ended."""
        return self._advance(final=True)

    def _advance(self, final: bool) -> str:
        text = self._decode(0)
        unsure = 0 if final else len(text) - len(text.rstrip(_REPLACEMENT))
        if unsure and self._held < _MAX_HELD_TOKENS:
            return ""
        unsure = min(unsure, _MAX_UNSURE) if len(self._ids) <= _MAX_WINDOW else 0
        before, self._sent = self._sent, max(self._sent, len(text) - unsure)
        self._held = 0
        piece = text[before : self._sent]
        self._shorten(len(text), unsure > 0)
        return piece

    def _shorten(self, length: int, unsure: bool) -> None:
        """Forget tokens that no longer matter; `length` is that of the text of all that are kept so far."""
        end = len(self._ids)
        if unsure:
            cut = max(0, end - _CONTEXT_TOKENS - _MAX_UNSURE)
        else:
            cut = max((at for at in self._ends if at <= end - _CONTEXT_TOKENS), default=0)
            self._ends.append(end)
        if not cut:
            return
        # The texts before and after the cut agree from the right.
        sent = len(self._decode(cut)) - (length - self._sent)
        if unsure and sent <= _MAX_UNSURE:
            return  # a cut may lie inside a character, whose rest may be all that the window shows
        del self._ids[:cut]
        self._ends = [at - cut for at in self._ends if at >= cut]
        self._sent = sent

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self._ids[start:], skip_special_tokens=self._skip)


def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ValueError(f"chat template: {error}") from error


def _refuse(message: object) -> None:
    """Called by templates that cannot express a conversation."""
    raise jinja2.TemplateError(str(message))


def _read(path: Path, limit: int) -> str | None:
    """The content of a UTF-8 file, None if there is none; ValueError if it is too large or not text."""
    if not path.is_file():
        return None
    if path.stat().st_size > limit:
        raise ValueError(f"{path}: must have at most {limit} bytes, got {path.stat().st_size}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error}") from error


def _json_object(path: Path) -> dict[str, Any]:
    text = _read(path, MAX_TEMPLATE_BYTES)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: must be a JSON object, got a {type(value).__name__}")
    return value


def _template_of_config(path: Path, value: Any) -> str | None:
    """The template of `tokenizer_config.json`: text, or a list of named ones of which "default" counts."""
    if isinstance(value, list):
        named = {e.get("name"): e.get("template") for e in value if isinstance(e, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{path}: chat_template must be text, got a {type(value).__name__}")
    return value


def _token_text(value: Any) -> str | None:
    """The text of a special token, written plainly or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
