"""A folder's tokenizer gives the same tokens for a text as a whole and in pieces."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors

from router.contract.redis.published import AS_SGLANG
from router.kv_events.listener import _loaded
from router.tests.tokenize.conftest import TEMPLATE, prompt_of, save, trained
from router.tokenize.folder import FolderTokenizer
from router.tokenize.tokenizer import NotTokenized

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
PIECES = st.one_of(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "\n", " ", "  a router"]), st.text(max_size=12)
)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> FolderTokenizer:
    return FolderTokenizer(folder)


@given(st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=5))
@settings(max_examples=60)
def test_a_growing_text_has_the_same_tokens_as_the_whole(tokenizer: FolderTokenizer, parts: list[str]) -> None:
    text = ""
    for part in parts:
        text += part
        assert tokenizer.text_tokens(text) == tokenizer.whole(text)


def test_a_conversation_is_rendered_and_tokenised(tokenizer: FolderTokenizer) -> None:
    tokens = tokenizer.tokens(prompt_of(CHAT, messages=HELLO), CHAT)
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokens == tokenizer.whole(text)
    assert tokenizer.special


def test_a_text_is_not_tokenised_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = FolderTokenizer(folder)
    turns = [*HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    tokenizer.tokens(prompt_of(CHAT, messages=HELLO), CHAT)
    asked: list[str] = []
    encoded = tokenizer._encoded
    monkeypatch.setattr(tokenizer, "_encoded", lambda texts: asked.extend(texts) or encoded(texts))
    tokenizer.tokens(prompt_of(CHAT, messages=turns), CHAT)
    assert asked == ["assistant\nhi<|im_end|>", "user\nmore<|im_end|>"]


def test_memory_of_past_entries_is_bounded(folder: Path) -> None:
    tokenizer = FolderTokenizer(folder, cache_bytes=2_000)
    for number in range(50):
        tokenizer.text_tokens(f"text number {number}<|im_end|>")
    assert tokenizer._cached_bytes <= 2_000
    assert len(tokenizer._cache) < 10


def test_the_bos_token_is_added(tmp_path: Path) -> None:
    made = trained()
    made.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 0)])
    tokenizer = FolderTokenizer(save(tmp_path, made))
    tokens = tokenizer.tokens(prompt_of("/v1/completions", prompt="hello"), "/v1/completions")
    assert tokens == struct.pack("<I", 0) + tokenizer.whole("hello")


def test_token_ids_are_used_unchanged(tokenizer: FolderTokenizer) -> None:
    for given_prompt in ([1, 2, 3], [[1, 2, 3]]):
        tokens = tokenizer.tokens(prompt_of("/v1/completions", prompt=given_prompt), "/v1/completions")
        assert tokens == struct.pack("<3I", 1, 2, 3)


def test_text_is_not_cut_at_a_special_token_that_strips_spaces(tmp_path: Path) -> None:
    made = trained()
    made.add_special_tokens([AddedToken("<|eats|>", rstrip=True, special=True)])
    tokenizer = FolderTokenizer(save(tmp_path, made))
    for text in ("a<|eats|>   b", "x<|eats|> <|im_end|> y"):
        assert tokenizer.text_tokens(text) == tokenizer.whole(text)


def test_a_tokenizer_that_depends_on_the_beginning_tokenizes_whole_texts(tmp_path: Path) -> None:
    made = trained()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = FolderTokenizer(save(tmp_path, made))
    assert not tokenizer.special
    assert tokenizer.text_tokens("a<|im_end|>b") == tokenizer.whole("a<|im_end|>b")


@pytest.mark.parametrize(
    ("api_path", "body", "why"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "not text"),
        (CHAT, {"messages": HELLO, "chat_template": "{{ 1 }}"}, "chat_template"),
        (CHAT, {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        (CHAT, {"messages": [{"role": "developer", "content": "a", "tools": [{}]}]}, "tools in a developer message"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "not text"),
        (CHAT, {"messages": "hello"}, "messages: missing"),
        (CHAT, {"messages": ["hello"]}, "not an object"),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}, "neither text nor a list"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "several prompts"),
        ("/v1/completions", {"prompt": [1, -1]}, "invalid token id"),
        ("/v1/completions", {"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
        ("/v1/completions", {"prompt": "a", "truncate_prompt_tokens": 8}, "truncate_prompt_tokens"),
        ("/v1/completions", {}, "prompt: missing"),
        ("/v1/embeddings", {"input": "a"}, "only the engine"),
    ],
)
def test_a_prompt_that_cannot_be_tokenised_says_why(
    tokenizer: FolderTokenizer, api_path: str, body: dict[str, object], why: str
) -> None:
    with pytest.raises(NotTokenized, match=why):
        tokenizer.tokens(prompt_of(api_path, **body), api_path)


def test_tool_calls_reach_the_template_as_objects(tokenizer: FolderTokenizer) -> None:
    call = {"function": {"name": "look", "arguments": '{"at": "it"}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tokens = tokenizer.tokens(prompt_of(CHAT, messages=messages), CHAT)
    text = (
        '<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nlook({"at": "it"})<|im_end|>\n'
        "<|im_start|>assistant\n"
    )
    assert tokens == tokenizer.whole(text)


def test_a_template_that_refuses_says_so(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(save(tmp_path, trained(), "{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(NotTokenized, match="roles must alternate"):
        tokenizer.tokens(prompt_of(CHAT, messages=HELLO), CHAT)


def test_a_template_file_takes_precedence_over_the_configuration(tmp_path: Path) -> None:
    save(tmp_path, trained(), "no")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = FolderTokenizer(tmp_path)
    assert tokenizer.tokens(prompt_of(CHAT, messages=HELLO), CHAT) != tokenizer.whole("no")


def test_a_template_that_handles_parts_gets_parts(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
    tokenizer = FolderTokenizer(save(tmp_path, trained(), template))
    messages = [{"role": "user", "content": [{"type": "text", "text": "one"}, "two"]}, *HELLO]
    assert tokenizer.tokens(prompt_of(CHAT, messages=messages), CHAT) == tokenizer.whole("[one][two][hello]")


def test_a_folder_without_a_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        FolderTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"no": "tokenizer"}))
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        FolderTokenizer(tmp_path)


@pytest.mark.parametrize(
    ("config", "chunk", "forgetful"),
    [
        (None, 0, False),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, 8192, True),
        ({"attention_chunk_size": "8192"}, 0, False),
        ({"text_config": {"layer_types": ["full_attention", "sliding_attention"]}}, 0, True),
    ],
)
def test_layers_that_keep_fewer_than_all_tokens_are_read_from_the_same_folder(
    tmp_path: Path, config: object, chunk: int, forgetful: bool
) -> None:
    save(tmp_path, trained())
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = FolderTokenizer(tmp_path)
    assert (tokenizer.attention_chunk, tokenizer.forgetful) == (chunk, forgetful)


async def test_the_folder_of_a_model_for_sglang_is_read_as_sglang_reads_it(folder: Path) -> None:
    said = {"role": "assistant", "content": "so"}
    there, here = await _loaded(f"{AS_SGLANG}{folder}"), await _loaded(str(folder))
    asked = prompt_of(CHAT, messages=[said])
    assert there.tokens(asked, CHAT) != here.tokens(asked, CHAT)
    answered = prompt_of(CHAT, messages=[{**said, "role": "user"}])
    assert there.tokens(asked, CHAT) == here.tokens(answered, CHAT)
    assert there.unsalted == frozenset(("/v1/messages",))
    assert not here.unsalted
