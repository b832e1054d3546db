"""Forms with files: bodies that two parsers could read differently are refused."""

import random
import re

import pytest

from router.contract.values import multipart
from router.contract.values.multipart import InvalidMultipart
from router.limits.charge import answers
from router.tokenize.prompt import read

TYPE = b"multipart/form-data; boundary=xyz"
FILE = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n%b\r\n'
)
FIELD = b'--xyz\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
END = b"--xyz--\r\n"


def model_of(body: bytes, *content_types: bytes) -> str | None:
    found = multipart.parts(body, multipart.boundary_of(content_types or (TYPE,)))
    read = multipart.text_of(body, found, b"model")
    return read[0] if read is not None else None


@pytest.mark.parametrize("content_type", [TYPE, b' Multipart/Form-Data; charset=utf-8 ;BOUNDARY="xyz"'])
@pytest.mark.parametrize("file", [b"", b"\0\r\n--xy\r\n\r\n", random.Random(1).randbytes(5000)])
def test_a_model_is_found_before_and_after_the_file(file: bytes, content_type: bytes) -> None:
    field = FIELD % (b"model", "whispér".encode())
    for body in (field + FILE % file + END, FILE % file + field + END[:-2]):
        assert model_of(body, content_type) == "whispér"
    assert model_of(FILE % file + END) is None


def test_the_answers_of_a_form_are_counted_as_engines_read_them() -> None:
    body = FIELD % (b"n", b"0_8") + END
    assert answers(read(body, "/v1/images/edits", (TYPE,)).document) == 8


MODEL = FIELD % (b"model", b"a")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (MODEL + FIELD % (b"model", b"b") + END, "model: send it once"),
        (FILE.replace(b'"file"', b'"model"') % b"a" + END, "model: must be text of at most 1024 bytes"),
        (FIELD % (b"model", b"a" * 1025) + END, "model: must be text of at most 1024 bytes"),
        (FIELD % (b"model", b"\xff") + END, "model: must be text in UTF-8"),
        (b"preamble\r\n" + MODEL + END, "must begin with its boundary"),
        (MODEL, "ends before its last boundary"),
        (MODEL + END + MODEL, "continues after its last boundary"),
        (MODEL.replace(b"--xyz\r\n", b"--xyz \r\n") + END, "must hold nothing else"),
        (FILE % b"\n--xyz\ncontent-disposition: form-data; name=model\n\nb" + END, "occurs within a part"),
        (MODEL.replace(b"xyz\r\n", b"xyz\r\nx: %b\r\n" % (b"y" * 9000)) + END, "at most 8,192 bytes"),
        (MODEL * 65 + END, "at most 64 parts"),
        (MODEL.replace(b"; name", b"; name=x; name") + END, "with a name in ASCII"),
        (MODEL.replace(b"name=", b"name*=utf-8''model; x=") + END, "with a name in ASCII"),
        (FIELD % (b"mo%64el", b"a") + END, "with a name in ASCII"),
        (FIELD % (b"mo\\del", b"a") + END, "with a name in ASCII"),
        (MODEL.replace(b"content-d", b" folded: x\r\ncontent-d") + END, "lines NAME: VALUE"),
        (MODEL.replace(b"\r\n\r\n", b'\r\nContent-Disposition: form-data; name="x"\r\n\r\n') + END, "each name once"),
        (MODEL.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + END, "send the bytes as they"),
    ],
)
def test_ambiguous_bodies_are_refused(body: bytes, why: str) -> None:
    with pytest.raises(InvalidMultipart, match=re.escape(why)):
        model_of(body)


@pytest.mark.parametrize(
    "content_types",
    [
        (TYPE, TYPE),
        (b"multipart/mixed; boundary=xyz",),
        (b"multipart/form-data",),
        (b"multipart/form-data; boundary=",),
        (b"multipart/form-data; boundary=xyz; boundary=abc",),
        (b"multipart/form-data; boundary=" + b"x" * 71,),
    ],
)
def test_exactly_one_boundary_must_be_given(content_types: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidMultipart, match="content-type"):
        model_of(MODEL + END, *content_types)
