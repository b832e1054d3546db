"""Prompts are what vLLM makes of the same requests, template by template and shape by shape.

rendered.json holds the digests of what vLLM 0.32 made of them, by its own code (rendered_by_vllm.py).
"""

import json
import subprocess
from pathlib import Path

import pytest

from router.tests.tokenize.conftest import prompt_of
from router.tests.tokenize.shapes import RESPONSES, SHAPES, TEMPLATES, digest
from router.tokenize.conversation import as_chat
from router.tokenize.template import Template
from router.tokenize.tokenizer import NotTokenized

HERE = Path(__file__).parent
BY_VLLM: dict[str, dict[str, str | None]] = json.loads((HERE / "rendered.json").read_text())
ENGINES = HERE.parents[2] / ".engines"


def rendered(template: Template, shape: str) -> str:
    api_path, document = SHAPES[shape]
    chat = as_chat(prompt_of(api_path, **document).document, api_path, template.manner)
    return template.render(chat, as_built=api_path == RESPONSES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_what_vllm_makes_of_the_request(name: str, tmp_path: Path) -> None:
    config = {"chat_template": TEMPLATES[name], "bos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template, different = Template(tmp_path), {}
    for shape, wanted in BY_VLLM[name].items():
        try:
            ours = digest(said := rendered(template, shape))
        except NotTokenized as why:
            ours, said = None, str(why)
        if ours != wanted:
            different[shape] = said
    assert not different
    assert set(BY_VLLM[name]) == set(SHAPES)


def test_a_model_that_engines_render_by_code_of_their_own_is_left_to_them(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}))
    with pytest.raises(NotTokenized, match="gpt_oss: engines render it without its template"):
        rendered(Template(tmp_path), "one question")


@pytest.mark.engines
@pytest.mark.skipif(not ENGINES.exists(), reason="make engines")
def test_the_digests_are_those_of_the_installed_vllm() -> None:
    command = [str(ENGINES / "bin/python"), str(HERE / "rendered_by_vllm.py"), str(ENGINES / "tiny-model")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr[-2000:]
    assert json.loads(made.stdout) == BY_VLLM
