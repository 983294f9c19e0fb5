"""What is typed for a model, taken apart; and what is said of what only looks like an address."""

from __future__ import annotations

import pytest

from pagedrun.errors import UsageError
from pagedrun.hub.reference import HubReference, UrlReference, parse


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("hf:me/M-GGUF", HubReference("me/M-GGUF")),
        ("hf:me/M-GGUF:Q8_0", HubReference("me/M-GGUF", None, "Q8_0")),
        ("hf:me/M-GGUF@v1.0:Q8_0", HubReference("me/M-GGUF", "v1.0", "Q8_0")),
        ("hf:me/M-GGUF@refs%2Fpr%2F1/M.gguf", HubReference("me/M-GGUF", "refs/pr/1", None, "M.gguf")),
        (
            "hf:me/M-GGUF/a folder/My Model Q8_0.gguf",
            HubReference("me/M-GGUF", None, None, "a folder/My Model Q8_0.gguf"),
        ),
    ],
)
def test_a_reference_to_the_hub_is_read_and_written(text: str, meant: HubReference) -> None:
    assert parse(text) == meant and str(meant) == text


@pytest.mark.parametrize(
    "text",
    [
        "hf:me",
        "hf:me/..",
        "hf:me/M/../../x.gguf",
        "hf:me/M//x.gguf",
        "hf:me/M/x.gguf/",
        "hf:me/M/x\n.gguf",
        "hf:me/M/\x1b[31m.gguf",
        "https://huggingface.co/me/M/resolve/main/%2e%2e/%2e%2e/x.gguf",
        "https://huggingface.co/%2e%2e/%2e%2e",
        "https://huggingface.co/me/M/resolve/main/%1b[31m.gguf",
    ],
)
def test_what_leads_elsewhere_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="is not hf:OWNER/REPO") as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("HF:me/M-GGUF:Q8_0", "small letters", "type: hf:me/M-GGUF:Q8_0"),
        ("Ollama:llama3.1", "small letters", "type: ollama:llama3.1"),
        ("HTTPS://x.org/m.gguf", "small letters", "type: https://x.org/m.gguf"),
        ("file:///models/my%20m.gguf", "address of a file here", "type its path: /models/my m.gguf"),
        ("ftp://x.org/m.gguf", "unknown beginning, ftp://", "https://"),
        ("http://", "not a whole address", "https://"),
        ("http://[::1/m.gguf", "not a whole address", "https://"),
        ("http://x.org:99999/m.gguf", "not a whole address", "https://"),
    ],
)
def test_an_address_of_another_kind_says_what_to_type(text: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("endpoint", ["http://[::1", "nonsense", "http://"])
def test_a_hub_address_that_is_none_spoils_no_other(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert isinstance(parse("https://example.org/me/M/resolve/main/m.gguf"), UrlReference)


def test_an_address_may_end_in_a_checksum() -> None:
    reference = UrlReference(f"https://x.org/m.gguf?a=b#sha256={'AB' * 32}")
    assert (reference.address, reference.sha256) == ("https://x.org/m.gguf?a=b", "ab" * 32)
    assert UrlReference("https://x.org/m.gguf").sha256 is None
    with pytest.raises(UsageError, match="is not #sha256=HEX"):
        _ = UrlReference("https://x.org/m.gguf#sha256=12").sha256
