"""Prompts equal those that vLLM and SGLang render from the same requests, template by template and shape by shape.

rendered_by_vllm.json and rendered_by_sglang.json hold the digests of what vLLM 0.32 and SGLang 0.5.23 rendered, by
their own code (the scripts of the same names).
"""

import contextlib
import json
import shutil
import subprocess
from array import array
from pathlib import Path

import pytest

from router.contract.values.json_value import JsonObject
from router.tests.tokenize.conftest import prompt_of
from router.tests.tokenize.shapes import CHAT, SHAPES, TEMPLATES, digest
from router.tokenize.folder import FolderTokenizer
from router.tokenize.sglang.template import SglangTemplate
from router.tokenize.template import Template
from router.tokenize.tokenizer import EngineRenders, NotTokenized

HERE = Path(__file__).parent
Digests = dict[str, dict[str, str | None]]
BY_VLLM: Digests = json.loads((HERE / "rendered_by_vllm.json").read_text())
BY_SGLANG: Digests = json.loads((HERE / "rendered_by_sglang.json").read_text())
# Requests that are left to the engines; the router forwards them like any other
LEFT_TO_VLLM = {"developer with tools", "m: result of an assistant"}
THINKS = {name for name in SHAPES if name.startswith(("m: thinking", "m: thought"))}
THINKS |= {"m: claude code", "m: highest effort", "m: two thoughts"}  # SGLang's reasoning parser decides
LEFT_TO_SGLANG = {"an image", "sound", "a tool that is named", "a result that names a tool", "m: image"}
LEFT_TO_SGLANG |= {"m: result that names a tool", "m: a tool that is named", "r: encrypted thoughts"}
# Requests that an engine refuses before it renders anything
REFUSED = {"parts of responses", "parts of null", "billing line of another type", "billing line among texts"}
REFUSED |= {"a name that is no text", "a call of no type", "arguments as an object", "no messages", "no tools"}
ENGINES, CONTRACTS = (HERE.parents[2] / name for name in (".engines", ".contracts"))
MODEL = ENGINES / "tiny-model"


def folder_of(name: str, folder: Path) -> Path:
    config = {"chat_template": TEMPLATES[name], "bos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_rendered_as_vllm_renders_it(name: str, tmp_path: Path) -> None:
    left, refused = compared(Template(folder_of(name, tmp_path)), BY_VLLM[name])
    assert left.keys() == LEFT_TO_VLLM
    assert refused <= REFUSED


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_rendered_as_sglang_renders_it(name: str, tmp_path: Path) -> None:
    """Some requests with reasoning cannot be rendered without SGLang's reasoning parser."""
    left, refused = compared(SglangTemplate(folder_of(name, tmp_path)), BY_SGLANG[name])
    parsed = {shape: why for shape, why in left.items() if "only the engine knows how its reasoning parser" in why}
    assert parsed.keys() <= THINKS
    assert left.keys() - parsed.keys() == LEFT_TO_SGLANG | LEFT_TO_VLLM
    assert refused <= {"no messages"}


def compared(template: Template, by_engine: dict[str, str | None]) -> tuple[dict[str, str], set[str]]:
    """Return the prompts that only the engine renders, with the reason, and those that only the engine refuses; all
    others must be rendered alike."""
    left, refused = {}, set()
    for shape, (api_path, document) in SHAPES.items():
        known = by_engine[shape]
        try:
            ours = digest(template.prompt(prompt_of(api_path, **document).document, api_path))
        except NotTokenized as why:
            if known is not None:
                left[shape] = str(why)
            continue
        if known is None:
            refused.add(shape)
        else:
            assert ours == known, shape
    return left, refused


@pytest.mark.parametrize("model", ["minimax_m3_vl", "GlmMoeDsaForCausalLM", "gpt_oss"])
def test_a_model_that_sglang_renders_in_code_is_left_to_sglang(model: str, tmp_path: Path) -> None:
    template = SglangTemplate(with_model(model, folder_of("plain", tmp_path)))
    with pytest.raises(NotTokenized, match=f"{model}: engines render it without its template"):
        template.prompt({"messages": [{"role": "user", "content": "hi"}]}, CHAT)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"continue_final_message": True}, "continue_final_message: only the engine"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs: only the engine"),
        ({"reasoning_effort": 0.5}, "the effort 0.5"),
        ({"messages": [{"role": "assistant", "content": "so", "prefix": True}]}, "the beginning of an answer"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
    ],
)
def test_a_chat_that_only_sglang_can_render_is_refused(document: JsonObject, why: str, tmp_path: Path) -> None:
    template = SglangTemplate(folder_of("plain", tmp_path))
    with pytest.raises(NotTokenized, match=why):
        template.prompt({"messages": [{"role": "user", "content": "hi"}], **document}, CHAT)


@pytest.mark.parametrize(
    "kept", ["{% set ns = namespace(rest=messages[1:]) %}", "{% set ns = namespace() %}{% set ns.rest = messages %}"]
)
def test_a_chat_that_only_some_versions_of_vllm_give_to_its_template_in_parts_is_left_to_the_engine(
    kept: str, tmp_path: Path
) -> None:
    """vLLM has found messages in a namespace since 0.33."""
    said = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}"
    source = f"{kept}{{% for m in ns.rest %}}{said}{{% endif %}}|{{% endfor %}}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    template, texts = Template(tmp_path), [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": texts[:1]}]
    assert template.prompt({"messages": talk}, CHAT).endswith("a|")
    with pytest.raises(EngineRenders, match="depending on its version"):
        template.prompt({"messages": [*talk, {"role": "user", "content": texts}]}, CHAT)


def test_a_model_that_engines_render_with_their_own_code_is_left_to_them(tmp_path: Path) -> None:
    template = Template(with_model("gpt_oss", folder_of("plain", tmp_path)))
    with pytest.raises(NotTokenized, match="gpt_oss: engines render it without its template"):
        template.prompt({"messages": [{"role": "user", "content": "hi"}]}, CHAT)


@pytest.mark.parametrize("file", ["tekken.json", "tokenizer.model.v7m1"])
def test_chats_of_mistrals_own_weights_and_tokenizer_are_left_to_vllm(file: str, tmp_path: Path) -> None:
    """vLLM 0.32 then uses mistral-common, whose prompts match no template (findings/mistral-questions.sh)."""
    folder, hi = folder_of("plain", tmp_path), {"messages": [{"role": "user", "content": "hi"}]}
    (folder / file).touch()
    assert Template(folder).prompt(hi, CHAT), "with other weights it takes the template"
    (folder / "consolidated-00001-of-00002.safetensors").touch()
    with pytest.raises(EngineRenders, match=f"{file}: engines render it without its template"):
        Template(folder).prompt(hi, CHAT)


def test_chats_of_a_folder_with_only_a_tekken_file_are_left_to_sglang(tmp_path: Path) -> None:
    """SGLang 0.5.23 uses mistral-common only without a `tokenizer.json`, whatever the weights."""
    folder, hi = folder_of("plain", tmp_path), {"messages": [{"role": "user", "content": "hi"}]}
    for name in ("tokenizer.json", "tekken.json", "tokenizer.model.v7m1", "consolidated.safetensors"):
        (folder / name).touch()
    assert SglangTemplate(folder).prompt(hi, CHAT)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(EngineRenders, match=r"tekken\.json: engines render it without its template"):
        SglangTemplate(folder).prompt(hi, CHAT)
    (folder / "tekken.json").unlink()
    assert SglangTemplate(folder).prompt(hi, CHAT)


def with_model(name: str, folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": name, "architectures": [name]}))
    return folder


@pytest.mark.engines
@pytest.mark.timeout(600)
@pytest.mark.skipif(not ENGINES.exists(), reason="make engines")
def test_the_digests_match_vllms_own_code_and_its_tokens_match_ours(tmp_path: Path) -> None:
    made, compared = made_by("vllm", str(MODEL), "tokens"), 0
    for name in TEMPLATES:
        folder = shutil.copytree(MODEL, tmp_path / name, ignore=shutil.ignore_patterns("chat_template.jinja"))
        reader = FolderTokenizer(folder_of(name, folder))
        for shape, (api_path, document) in SHAPES.items():
            text, _, ids = (made[name][shape] or "").partition(" ")
            assert (text or None) == BY_VLLM[name][shape], (name, shape)
            with contextlib.suppress(NotTokenized):
                ours = reader.tokens(prompt_of(api_path, **document), api_path)
                assert ids in ("", digest(str(array("I", ours).tolist()))), (name, shape)
                compared += bool(ids)
    assert compared == 1_647


@pytest.mark.engines
@pytest.mark.timeout(600)
@pytest.mark.skipif(not ENGINES.exists(), reason="make engines")
def test_the_digests_match_sglangs_own_code() -> None:
    wheels = [str(wheel) for wheel in sorted(CONTRACTS.glob("sglang-*.whl"))]
    if not wheels:
        pytest.skip("make test-contracts")
    assert made_by("sglang", wheels[-1], str(MODEL)) == BY_SGLANG


def made_by(engine: str, *words: str) -> Digests:
    command = [str(ENGINES / "bin/python"), str(HERE / f"rendered_by_{engine}.py"), *words]
    made = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert made.returncode == 0, made.stderr[-2000:]
    digests: Digests = json.loads(made.stdout)
    return digests
