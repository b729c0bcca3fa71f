"""Tokenizers: round trips, streamed text that equals the decoded whole, sandboxed templates, refusals."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from hocket.model.recall import recall_tokenizer
from hocket.model.tokenizer import IncrementalDetokenizer, Tokenizer


def byte_level():
    """Every byte a token, as byte-level vocabularies do it, and one special token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend)


def byte_fallback():
    """Bytes as <0xNN> tokens, which decode only as whole runs, and spaces as sentencepiece writes them."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<unk>": 256, "▁hi": 257, "▁": 258}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


BYTES, FALLBACK = byte_level(), byte_fallback()


def save(folder, tokenizer=None, **files):
    (folder / "tokenizer.json").write_text((tokenizer or BYTES)._backend.to_str())
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / {"config": "tokenizer_config.json", "template": "chat_template.jinja"}[name]).write_text(
            text
        )
    return folder


# -- streaming


def stream(tokenizer, ids, sizes=(1,)):
    """All pieces of a stream that gets `sizes` tokens at a time (the last size repeats)."""
    detokenizer, pieces, at = IncrementalDetokenizer(tokenizer), [], 0
    sizes = list(sizes)
    while at < len(ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        pieces.append(detokenizer.push(ids[at : at + size]))
        at += size
    return [*pieces, detokenizer.flush()]


def test_no_piece_holds_a_part_of_a_character():
    text = "a€🎼é"
    ids = BYTES.encode(text)
    assert len(ids) == 10
    assert stream(BYTES, ids) == ["a", "", "", "€", "", "", "", "🎼", "", "é", ""]
    assert stream(BYTES, ids, (4, 3, 3)) == ["a€", "", "🎼é", ""]


@given(text=st.text(max_size=40), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_pieces_add_up_to_the_decoded_text(text, sizes):
    ids = BYTES.encode(text)
    pieces = stream(BYTES, ids, sizes)
    assert "".join(pieces) == BYTES.decode(ids)
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


# Bytes that begin, continue or spoil characters, and two plain ones; 256 is the special token.
UGLY = [0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x8E, 0xBC, 0xFF, 0x80, 0x41, 0x20]


def byte_ids(content):
    """Token ids of bytes in the byte-level vocabulary, 256 for <eos>."""
    names = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = [names.pre_tokenize_str(chr(byte))[0][0] for byte in range(128)]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in printable]
    letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(other)}
    assert [letter[b] for b in range(128)] == letters
    return [BYTES.token_id("<eos>" if byte == 256 else letter[byte]) for byte in content]


def test_a_character_after_a_run_of_invalid_bytes_is_kept():
    for count in range(40):
        for tail in ([0xC3, 0xA9], [0xE2, 0x82, 0xAC], [0xF0, 0x9F, 0x8E, 0xBC]):
            ids = byte_ids([0xFF] * count + tail + [0x41])
            assert "".join(stream(BYTES, ids)) == "\ufffd" * count + bytes(tail).decode() + "A"


@given(
    content=st.lists(st.sampled_from([*UGLY, 256]) | st.integers(0x80, 0xFF), max_size=90),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
def test_pieces_of_invalid_bytes_add_up_too(content, sizes):
    ids = byte_ids(content)
    assert "".join(stream(BYTES, ids, sizes)) == BYTES.decode(ids)


def test_a_character_whose_bytes_lie_far_apart():
    """Special tokens are skipped, so that the bytes around them are neighbours."""
    ids = byte_ids([0xE2, *[256] * 40, 0x82, *[256] * 40, 0xAC, 0x41])
    assert "".join(stream(BYTES, ids)) == "€A"


def test_tokens_that_always_end_inside_a_character():
    """A vocabulary may have tokens of the second byte of one character and the first of the next."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    joined = "\u00a9\u00c3"  # the bytes A9 C3, as byte-level vocabularies write them
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate([*letters, joined])}, []))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend)
    ids = [tokenizer.token_id("\u00c3"), *[tokenizer.token_id(joined)] * 200, tokenizer.token_id("\u00a9")]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == "é" * 201
    assert max(map(len, pieces)) <= 17


@pytest.mark.parametrize("byte", [0xFF, 0xC3, 256], ids=["invalid", "unfinished", "no text"])
def test_the_window_stays_small_whatever_comes(byte):
    detokenizer = IncrementalDetokenizer(BYTES)
    for _ in range(50):
        detokenizer.push(byte_ids([byte] * 20))
        assert len(detokenizer._ids) < 40


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters=" \ufffd"), max_size=30))
def test_runs_of_fallback_bytes_add_up_too(text):
    ids = [257, *text.encode(), 257]
    assert "".join(stream(FALLBACK, ids)) == FALLBACK.decode(ids) == f"hi{text} hi"


@given(st.lists(st.integers(0, 372), max_size=40))
def test_word_level_text_streams_as_it_decodes(ids):
    tokenizer = recall_tokenizer()
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_invalid_bytes_come_out_at_the_end_and_are_not_held_for_ever():
    half = BYTES.encode("€")[:2]
    assert stream(BYTES, [*BYTES.encode("ok"), *half]) == ["o", "k", "", "", "\ufffd"]
    endless = [BYTES.encode("€")[1]] * 100  # continuation bytes only
    detokenizer = IncrementalDetokenizer(BYTES)
    pieces = [detokenizer.push([token]) for token in endless]
    assert sum(map(len, pieces)) > 80
    after = detokenizer.push(BYTES.encode("x"))
    assert after.endswith("x")


def test_special_tokens_are_left_out_unless_wanted():
    eos = BYTES.token_id("<eos>")
    ids = [*BYTES.encode("a"), eos, *BYTES.encode("b")]
    assert "".join(stream(BYTES, ids)) == BYTES.decode(ids) == "ab"
    detokenizer = IncrementalDetokenizer(BYTES, skip_special_tokens=False)
    assert detokenizer.push(ids) + detokenizer.flush() == "a<eos>b"


def test_the_cost_of_a_token_does_not_grow():
    calls = []

    class Counting:
        def decode(self, token_ids, skip_special_tokens):
            calls.append(len(token_ids))
            return BYTES.decode(token_ids)

    detokenizer = IncrementalDetokenizer(Counting())
    text = "abc€" * 2000
    pieces = [detokenizer.push([token]) for token in BYTES.encode(text)]
    assert "".join(pieces) + detokenizer.flush() == text
    assert max(calls) < 16
    assert len(detokenizer._ids) < 5000


# -- encoding and files


def test_special_tokens_are_added_only_when_asked_for():
    tokenizer = recall_tokenizer()
    assert tokenizer.encode("code") == [3]
    assert tokenizer.encode("code", add_special_tokens=True) == [0, 3]
    assert tokenizer.token_id("<eos>") == 1
    assert tokenizer.token_id("nothing") is None
    assert tokenizer.vocab_size == 373
    assert tokenizer.decode([3, 380]) == "code"  # an id without a token


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not a tokenizer"), ('{"model": 3}', "not a tokenizer"), (None, "no such regular file")],
)
def test_bad_tokenizer_files_are_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=rf"tokenizer\.json: {message}"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "tokenizer_config.json: not JSON"),
        ("[1]", "tokenizer_config.json: must be a JSON object, got a list"),
        ('{"chat_template": 3}', "tokenizer_config.json: chat_template must be text, got a int"),
        ("[" * 100_000, "tokenizer_config.json: not JSON"),
        (" " * (1 << 20) + "{}", "tokenizer_config.json: must have at most 1048576 bytes, got 1048578"),
    ],
)
def test_bad_tokenizer_configurations_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_folder(save(tmp_path, config=content))


def test_text_that_is_not_utf8_is_named(tmp_path):
    (save(tmp_path) / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: not UTF-8"):
        Tokenizer.from_folder(tmp_path)


# -- chat templates

TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.mark.parametrize(
    "files",
    [
        {"template": TURNS, "config": {"bos_token": "<b>"}},
        {"config": {"bos_token": {"content": "<b>"}, "chat_template": TURNS}},
        {"config": {"bos_token": "<b>", "chat_template": [{"name": "default", "template": TURNS}]}},
        {"template": TURNS, "config": {"bos_token": "<b>", "chat_template": "not this one"}},
    ],
)
def test_templates_are_found_wherever_checkpoints_keep_them(tmp_path, files):
    tokenizer = Tokenizer.from_folder(save(tmp_path, **files))
    assert tokenizer.has_chat_template
    assert tokenizer.apply_chat_template(MESSAGES) == "<b>[user]hi[assistant]ho"


def chat(tmp_path, template, **variables):
    return Tokenizer.from_folder(save(tmp_path, template=template)).apply_chat_template(MESSAGES, **variables)


def test_templates_get_variables_json_and_loop_controls(tmp_path):
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}"
        "{{ m | tojson }}{{ mood | tojson }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}{{ mood }}"
    )
    assert chat(tmp_path, template, mood="é") == '{"role": "user", "content": "hi"}"é">é'
    template = "{{ messages[0] | tojson }}{% if add_generation_prompt %}>{% endif %}"
    assert chat(tmp_path, template, add_generation_prompt=False) == '{"role": "user", "content": "hi"}'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content }}", "chat template: "),
        ("{{ 1 // 0 }}", "chat template: "),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "is not safely callable|unsafe"),
        ("{{ range(1000000) | length }}", "Range too big"),
        ("{{ missing.field }}", "'missing' is undefined"),
    ],
)
def test_templates_that_refuse_fail_or_reach_out_are_value_errors(tmp_path, template, message):
    with pytest.raises(ValueError, match=message):
        chat(tmp_path, template)


def test_a_template_that_does_not_compile_is_refused_when_the_tokenizer_is_loaded(tmp_path):
    with pytest.raises(ValueError, match="chat template: "):
        Tokenizer.from_folder(save(tmp_path, template="{% for %}"))


def test_without_a_template_messages_are_refused(tmp_path):
    tokenizer = Tokenizer.from_folder(save(tmp_path))
    assert not tokenizer.has_chat_template
    with pytest.raises(ValueError, match="this checkpoint has no chat template"):
        tokenizer.apply_chat_template(MESSAGES)


# -- what a file may not do, and what is no id


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path):
    plain = BYTES.encode("a long prompt")
    backend = tokenizers.Tokenizer.from_str(BYTES._backend.to_str())
    backend.enable_truncation(4)
    assert Tokenizer.from_folder(save(tmp_path, Tokenizer(backend))).encode("a long prompt") == plain
    backend.no_truncation()
    backend.enable_padding(length=32, pad_id=0, pad_token="!")
    assert Tokenizer.from_folder(save(tmp_path, Tokenizer(backend))).encode("a long prompt") == plain


def test_every_id_is_below_the_vocabulary_size():
    assert BYTES.vocab_size == 257
    sparse = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 70}, unk_token="a"))
    assert Tokenizer(sparse).vocab_size == 71


@pytest.mark.parametrize("ids", [[-1], [1 << 40], [1.5], ["a"]], ids=str)
def test_decode_refuses_what_is_no_id(ids):
    with pytest.raises(ValueError, match="token_ids must be ints"):
        BYTES.decode(ids)
