"""Blanks do not count towards the length of a password."""

import pytest
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError


@pytest.mark.parametrize("password", [" " * 10, "\t" * 12, "a         b", "\u2003" * 10, "abcdefghi "])
def test_a_password_of_blanks_is_refused(password):
    with pytest.raises(ValidationError, match="that are no blanks"):
        validate_password(password)


def test_a_sentence_can_be_a_password():
    validate_password("correct horse battery staple")
