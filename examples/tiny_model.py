"""Makes a tiny model for real engines, without a download: a tokenizer trained on the spot and a small Llama.

    .engines/bin/python examples/tiny_model.py FOLDER [CONFIG.json]

With the config.json of another model: one of its shape, and the tokenizer filled up to its vocabulary.

Runs in the engines' environment (transformers, tokenizers), not in Weir's. It writes no weights: engines generate them
with `--load-format dummy`, the same in every process, so two engines give the same answers at temperature 0.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

VOCABULARY = 512
CHAT = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


def training_text() -> Iterator[str]:
    """Return training text with the byte pairs of plain English."""
    things = ("river", "weir", "water", "engine", "token", "prompt", "answer", "cache", "block", "router")
    for first in things:
        for second in things:
            yield f"The {first} of the {second} is where the {second} and the {first} meet. What does it hold?\n"


def make(folder: str, config: dict[str, object] | None = None) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        training_text(), trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    if config:
        tokenizer = Tokenizer.from_str(filled(tokenizer.to_str(), int(str(config["vocab_size"]))))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0], model_max_length=131_072
    )
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    if config:
        ends = {"eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id, "bos_token_id": None}
        (Path(folder) / "config.json").write_text(json.dumps(config | ends))
        return
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
        dtype="bfloat16",
    ).save_pretrained(folder)


def filled(tokenizer: str, size: int) -> str:
    """Return entries that no text is split into: an engine answers with any of the numbers of its vocabulary."""
    found = json.loads(tokenizer)
    known = found["model"]["vocab"]
    known |= {f"<{number}>": number for number in range(len(known), size)}
    return json.dumps(found)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python examples/tiny_model.py FOLDER [CONFIG.json]")
    make(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) == 3 else None)
