"""What a hub answers and refuses, as sizes, checksums and errors for people; and what names stand for."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from pagedrun.errors import DownloadError, ModelNotFoundError, PagedrunError, UsageError
from pagedrun.hub import http, pull, remote
from tests.fake_hub import COMMIT, FakeHub, Fault, Repo, model

CONTENT = model(5000)


@pytest.fixture
def hub(fake_hub: FakeHub) -> FakeHub:
    fake_hub.repos["me/M-GGUF"] = Repo({"M-Q4_K_M.gguf": CONTENT, "README.md": b"#", "mmproj-F16.gguf": model(900)})
    return fake_hub


def refusal(name: str = "hf:me/M-GGUF") -> PagedrunError:
    with pytest.raises(PagedrunError) as caught:
        pull.resolve(name)
    assert caught.value.hint
    return caught.value


def test_a_repository_has_files_with_sizes_and_checksums_at_a_commit(hub: FakeHub) -> None:
    found = remote.repository("me/M-GGUF")
    assert (found.commit, found.license) == (COMMIT, "apache-2.0")
    file = next(f for f in found.files if f.path == "M-Q4_K_M.gguf")
    assert (file.size, file.sha256) == (5000, hashlib.sha256(CONTENT).hexdigest())
    hub.repos["me/M-GGUF"].lfs = False
    file = next(f for f in remote.repository("me/M-GGUF").files if f.path == "M-Q4_K_M.gguf")
    assert file.sha256 is None and file.version == f'"{hashlib.sha1(CONTENT).hexdigest()}"'


@pytest.mark.parametrize(
    ("status", "headers", "says", "hint"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "no repository me/M-GGUF, or it is private", "pagedrun search M-GGUF"),
        (404, {}, "no repository me/M-GGUF", "HF_TOKEN"),
        (401, {"X-Error-Code": "GatedRepo"}, "me/M-GGUF is gated", "then set HF_TOKEN"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "no revision main", "@REVISION"),
        (404, {"X-Error-Code": "EntryNotFound"}, "no repository me/M-GGUF", "pagedrun search"),
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "resource is disabled", "HF_TOKEN"),
        (429, {"Retry-After": "100"}, "asked too often", "in 1 min 40 s"),
        (429, {}, "asked too often", "in a few minutes"),
        (500, {}, r"has a problem \(500\)", "later"),
        (418, {}, "answered 418", "HF_ENDPOINT"),
    ],
)
def test_every_refusal_has_its_own_words(
    hub: FakeHub, status: int, headers: dict[str, str], says: str, hint: str
) -> None:
    hub.faults = [Fault("api", "status", None, status=status, headers=headers)]
    with pytest.raises(DownloadError, match=says) as caught:
        pull.resolve("hf:me/M-GGUF")
    assert hint in caught.value.hint


def test_a_token_changes_what_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults = [Fault("api", "status", status=401, headers={"X-Error-Message": "Invalid credentials"})]
    assert "does not accept the token" in refusal().message
    hub.faults = [Fault("api", "status", status=403, headers={"X-Error-Code": "GatedRepo"})]
    assert "account of the token" in refusal().hint
    monkeypatch.setenv("HF_TOKEN", "hf_sec ret")
    assert refusal().message == "the Hugging Face token holds characters that no token has"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert "authorization" not in remote.headers()


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"[]",
        b'{"siblings": [1]}',
        b'{"id": "me/M-GGUF", "siblings": []}',
        b'{"id": "me/M-GGUF", "sha": "c", "siblings": [{"rfilename": 1}]}',
        b'{"id": "me/M-GGUF", "sha": "c", "siblings": [{"rfilename": "m", "size": "1"}]}',
    ],
)
def test_an_answer_that_makes_no_sense(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    hub.files["api"] = content
    monkeypatch.setattr(remote, "endpoint", lambda: hub.file_url("api").removesuffix("/api"))
    hub.files["api/models/me/M-GGUF"] = content
    assert "does not answer as a hub does" in refusal().message


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_means_no_request(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert variable in refusal().message
    with pytest.raises(DownloadError, match="must not be asked"):
        pull.fetch(pull.resolve("big"), lambda done, total: None)
    assert hub.requests == []


def test_no_network_is_said_after_a_few_attempts(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert refusal().message == "127.0.0.1:9: connection refused"
    assert hub.waits == [1.0, 2.0]
    monkeypatch.setenv("HF_ENDPOINT", "http://nowhere.invalid")
    assert "no server of that name, or no network" in refusal().message
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("http:", "https:"))
    assert "no secure connection" in refusal().message


@pytest.mark.parametrize("value", ["http://[::1", "nonsense", "huggingface.co", "http://", "ftp://x", "http://x:99999"])
def test_a_hub_address_that_is_none_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", value)
    assert refusal().message == f"HF_ENDPOINT is not the address of a hub: {value}"
    with pytest.raises(DownloadError, match="HF_ENDPOINT"):
        remote.search(["m"], 3)
    with pytest.raises(DownloadError, match="HF_ENDPOINT"):
        pull.fetch(pull.resolve("big"), lambda done, total: None)


def test_what_holds_an_answer_up_is_told(hub: FakeHub) -> None:
    hub.faults = [Fault("api", "status", 2, status=503), Fault("file", "status", status=503)]
    said: list[str] = []
    pull.resolve("hf:me/M-GGUF", say=said.append)
    name = hub.url.removeprefix("http://")
    assert said == [
        f"{name} has a problem (503); again in 1.0 s",
        "",
        f"{name} has a problem (503); again in 2.0 s",
        "",
    ]
    hub.files["m.gguf"] = CONTENT
    pull.resolve(hub.file_url("m.gguf"), say=said.append)
    assert len(said) == 6


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("HTTP_PROXY", "nonsense://x", "proxy settings cannot be used"),
        ("HTTP_PROXY", "http://127.0.0.1:9", "the proxy 127.0.0.1:9: connection refused"),
        ("HTTP_PROXY", "me:secret@nowhere.invalid", "the proxy nowhere.invalid: there is no server of that name"),
        ("ALL_PROXY", "socks5://127.0.0.1:9", "the proxy 127.0.0.1:9: connection refused"),
    ],
)
def test_proxies_are_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv(variable, value)
    error = refusal()
    assert says in error.message and "HTTPS_PROXY, HTTP_PROXY and ALL_PROXY" in error.hint
    assert "secret" not in error.message + error.hint
    with pytest.raises(DownloadError, match=re.escape(says)):
        pull.fetch(pull.resolve("big"), lambda done, total: None)
    assert hub.requests == []


def test_no_proxy_goes_past_one(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert pull.resolve("hf:me/M-GGUF").size == 5000
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = refusal()  # the hub itself: no word of a proxy
    assert error.message == "127.0.0.1:9: connection refused" and "Behind a proxy, set" in error.hint


def test_a_proxy_that_wants_a_password_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", hub.url)
    hub.faults = [Fault(where, "status", None, status=407) for where in ("api", "resolve")]
    for name in ("hf:me/M-GGUF", "big"):
        with pytest.raises(DownloadError, match=r"the proxy 127.0.0.1:\d+ wants a user and a password"):
            pull.fetch(pull.resolve(name), lambda done, total: None)


def test_certificates_that_are_none(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "company.pem"
    file.write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert refusal().message.startswith("the certificates cannot be used: ")


def test_what_a_hub_says_aside_is_not_printed(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    hub.faults = [Fault("api", "status", status=404, headers={"X-HF-Warning": "a topic; \x1b[31mred"})]
    refusal()
    assert caplog.records == []


def test_an_answer_that_is_not_compressed_as_it_says(hub: FakeHub) -> None:
    hub.faults = [Fault("api", "gzip", None)]
    assert "the answer is damaged" in refusal().message
    hub.faults = [Fault("api", "gzip")]
    assert pull.resolve("hf:me/M-GGUF").size == 5000


def test_a_search_has_the_most_fetched_first(hub: FakeHub) -> None:
    hub.repos["you/M-2-GGUF"] = Repo({}, downloads=7)
    assert [(f.name, f.downloads) for f in remote.search(["m", "gguf"], 10)] == [("you/M-2-GGUF", 7), ("me/M-GGUF", 0)]
    assert len(remote.search(["m"], 1)) == 1
    assert remote.search(["absent"], 10) == []


def test_a_search_is_not_repeated_for_longer_than_any_other_request(hub: FakeHub) -> None:
    hub.faults = [Fault("api", "status", None, status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(DownloadError, match="asked too often") as caught:
        remote.search(["m"], 10)
    assert "in 1 h" in caught.value.hint and len(hub.requests) == 1
    hub.faults = [Fault("api", "stall", None)]
    with pytest.raises(DownloadError, match="nothing came any more"):
        remote.search(["m"], 10)
    assert hub.waits == [1.0, 2.0]


def test_retry_after_is_seconds_or_a_date() -> None:
    assert http.retry_after({"retry-after": "12"}) == 12
    assert http.retry_after({"retry-after": "-3"}) == 0
    assert http.retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    for nothing in ({}, {"retry-after": ""}, {"retry-after": "inf"}, {"retry-after": "soon"}):
        assert http.retry_after(nothing) is None


# --- what names stand for ---


def test_a_name_of_the_registry_needs_no_network(hub: FakeHub) -> None:
    found = pull.resolve("BIG")
    assert (found.name, found.size, found.source) == ("big", 10_244, f"hf:me/big-GGUF@{'0' * 40}")
    assert found.paths == [Path(os.environ["PAGEDRUN_MODELS"]) / "me" / "big-GGUF" / "Big-Q4_K_M.gguf"]
    assert hub.requests == []


def test_a_registry_entry_that_says_too_little_asks_the_hub(hub: FakeHub) -> None:
    own = Path(os.environ["PAGEDRUN_CONFIG"]) / "models.toml"
    own.write_text(own.read_text() + '\n[models.mine]\nsource = "hf:me/M-GGUF"\nfile = "M-Q4_K_M.gguf"\n')
    found = pull.resolve("mine")
    assert (found.name, found.size, found.source) == ("mine", 5000, f"hf:me/M-GGUF@{COMMIT}")
    path = pull.fetch(found, lambda done, total: None)
    assert path.read_bytes() == CONTENT


def test_a_repository_with_its_image_part(hub: FakeHub) -> None:
    found = pull.resolve("hf:me/M-GGUF", projector=True)
    assert [f.path for f in found.files] == ["M-Q4_K_M.gguf", "mmproj-F16.gguf"] and found.size == 5900
    pull.fetch(found, lambda done, total: None)
    assert [p.stat().st_size for p in pull.present(found) or []] == [5000, 900]


def test_an_address_of_the_hub_is_its_repository(hub: FakeHub) -> None:
    found = pull.resolve(f"{hub.url}/me/M-GGUF/resolve/main/M-Q4_K_M.gguf?download=true")
    assert (found.name, found.source) == ("hf:me/M-GGUF@main/M-Q4_K_M.gguf", f"hf:me/M-GGUF@{COMMIT}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./m.gguf", "path of a file"),
        ("ollama:llama3.1", "ollama pull llama3.1:latest"),
        ("hf:../..", "hf:"),
        ("hf:me/../M", "hf:"),
        ("hf:me/-M-", "is no repository"),
        ("https://example.invalid/page", "does not end in the name of a .gguf file"),
        ("https://example.invalid/m.gguf#sha256=12", "is not #sha256=HEX"),
        ("https://example.invalid/.m.gguf", "would be a hidden file"),
    ],
)
def test_what_cannot_be_fetched_is_wrong_usage(hub: FakeHub, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pull.resolve(name)
    assert hub.requests == []


def test_an_unknown_name_is_not_looked_for_on_the_hub(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match="no model named"):
        pull.resolve("bigg")
    assert hub.requests == []


@pytest.mark.parametrize("name", ["../../../evil-Q4_K_M.gguf", ".hidden-Q4_K_M.gguf", ".a/b-Q4_K_M.gguf", "a\nb.gguf"])
def test_what_may_not_be_called_so_here_is_refused_by_name(hub: FakeHub, name: str) -> None:
    hub.repos["me/M-GGUF"] = Repo({name: CONTENT})
    assert repr(name) in refusal().message
    hub.repos["me/M-GGUF"].files["M-Q8_0.gguf"] = CONTENT
    assert pull.resolve("hf:me/M-GGUF").files[0].path == "M-Q8_0.gguf"


def test_a_file_lies_where_it_lies_in_its_repository(hub: FakeHub) -> None:
    hub.repos["me/M-GGUF"] = Repo({"Q4_K_M/model.gguf": CONTENT, "Q8_0/model.gguf": model(900)})
    root = Path(os.environ["PAGEDRUN_MODELS"]) / "me" / "M-GGUF"
    for name, folder in (("hf:me/M-GGUF", "Q4_K_M"), ("hf:me/M-GGUF:Q8_0", "Q8_0")):
        found = pull.resolve(name)
        assert found.paths == [root / folder / "model.gguf"] and found.name == f"hf:me/M-GGUF:{folder}"
        pull.fetch(found, lambda done, total: None)
    assert [p.stat().st_size for p in sorted(root.rglob("*.gguf"))] == [5000, 900]


def test_a_file_with_a_space_in_its_name_can_be_typed(hub: FakeHub) -> None:
    hub.repos["me/M-GGUF"] = Repo({"My Model Q8_0.gguf": CONTENT})
    assert pull.resolve("hf:me/M-GGUF/My Model Q8_0.gguf").size == 5000
