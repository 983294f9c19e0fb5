"""What is here already, what may be replaced, and where from: addresses, revisions, files of other sources."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.hub import pull, record
from tests.fake_hub import COMMIT, FakeHub, Fault, Repo, model
from tests.hub_fakes import put
from tests.hub_pulls import CONTENT, NAME, fill, final, get, interrupted_at, left_over, refused


@pytest.fixture
def hub(fake_hub: FakeHub) -> FakeHub:
    return fill(fake_hub)


# --- addresses, which give no checksum ---


def test_an_address_gives_a_file_and_a_word_about_its_checksum(hub: FakeHub) -> None:
    notes: list[str] = []
    path = get(hub.file_url("m.gguf"), on_note=notes.append)
    assert path.read_bytes() == CONTENT and path == Path(os.environ["PAGEDRUN_MODELS"]) / "m.gguf"
    assert len(notes) == 1 and "no checksum" in notes[0]
    known = record.read(path)
    assert known is not None and not known.verified and known.source == hub.file_url("m.gguf")
    asked = len(hub.asked("file"))
    get(hub.file_url("m.gguf"))
    assert len(hub.asked("file")) == asked + 1  # the size only
    assert pull.present(pull.resolve(hub.file_url("m.gguf"))) == [path]


def test_the_file_of_another_address_is_neither_taken_for_this_one_nor_replaced(hub: FakeHub) -> None:
    path = get(hub.file_url("m.gguf"))
    for content in (model(300_000, seed=1), model(5000)):  # of the same size, and of another
        hub.files["b/m.gguf"] = content
        other = hub.file_url("b/m.gguf")
        assert pull.present(pull.resolve(other)) is None
        error = refused(other)
        assert error.message == (
            f"{path} is there already, fetched from {hub.file_url('m.gguf')}, and {other} is another file of that name"
        )
        assert f"pagedrun rm {path}" in error.hint
        assert path.read_bytes() == CONTENT and left_over() == set()
    hub.files["b/m.gguf"] = CONTENT
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert pull.present(pull.resolve(f"{hub.file_url('b/m.gguf')}#sha256={digest}")) == [
        path
    ]  # the same, wherever from


def test_a_file_that_was_put_there_by_hand_is_not_taken_for_that_of_an_address(hub: FakeHub) -> None:
    path = put(Path(os.environ["PAGEDRUN_MODELS"]) / "m.gguf", model(300_000, seed=1))
    assert pull.present(pull.resolve(hub.file_url("m.gguf"))) is None
    assert "did not put it there" in refused(hub.file_url("m.gguf")).hint
    assert path.read_bytes() != CONTENT


def test_an_address_may_give_the_checksum_itself(hub: FakeHub) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    path = get(f"{hub.file_url('m.gguf')}#sha256={digest}")
    known = record.read(path)
    assert known is not None and known.verified
    path.unlink()
    error = refused(f"{hub.file_url('m.gguf')}#sha256={'0' * 64}")
    assert "promised" in error.message and "the checksum right that was typed" in error.hint
    assert not path.exists()


def test_neither_password_nor_signature_is_kept(hub: FakeHub) -> None:
    address = hub.file_url("m.gguf").replace("http://", "http://user:secret@") + "?token=secret"
    pullable = pull.resolve(address)
    assert pullable.source == hub.file_url("m.gguf")
    interrupted_at(100_000, address)
    assert all("secret" not in p.read_text() for p in Path(os.environ["PAGEDRUN_MODELS"]).rglob("id"))
    pull.fetch(pull.resolve(address.replace("token=secret", "token=other")), lambda done, total: None)
    assert "range" in hub.asked("file")[-1]  # another signature is the same address
    (Path(os.environ["PAGEDRUN_MODELS"]) / "m.gguf").unlink()
    path = pull.fetch(pullable, lambda done, total: None)
    assert "secret" not in record.record_path(path).read_text()


def test_an_address_whose_content_changed_is_not_joined_to_the_old(hub: FakeHub) -> None:
    interrupted_at(100_000, hub.file_url("m.gguf"))
    hub.files["m.gguf"] = model(300_000, seed=2)
    assert get(hub.file_url("m.gguf")).read_bytes() == hub.files["m.gguf"]
    hub.files["m.gguf"] = CONTENT
    Path(os.environ["PAGEDRUN_MODELS"], "m.gguf").unlink()
    pullable = pull.resolve(hub.file_url("m.gguf"))
    hub.files["m.gguf"] = model(300_000, seed=3)  # between the question and the answer
    hub.faults = [Fault("file", "drop", at=100_000)]
    assert pull.fetch(pullable, lambda done, total: None).read_bytes() == hub.files["m.gguf"]


def test_without_any_version_an_earlier_part_is_not_trusted(hub: FakeHub) -> None:
    hub.tags = False
    interrupted_at(100_000, hub.file_url("m.gguf"))
    get(hub.file_url("m.gguf"))
    assert "range" not in hub.asked("file")[-1]
    assert left_over() == set()


# --- what is there already ---


def test_a_file_that_pagedrun_did_not_put_there_stays(hub: FakeHub) -> None:
    put(final(), b"mine")
    assert "did not put it there" in refused().hint
    assert final().read_bytes() == b"mine"


def test_a_file_that_was_changed_or_is_an_older_version_is_replaced_aloud(hub: FakeHub) -> None:
    get()
    for content in (b"damaged", CONTENT):
        put(final(), content)
        hub.repos["me/M-GGUF"].files["M-Q4_K_M.gguf"] = newer = model(300_000, seed=len(content))
        notes: list[str] = []
        assert get(on_note=notes.append).read_bytes() == newer
        assert len(notes) == 1 and "fetched again" in notes[0]


def test_a_right_file_without_a_record_is_hashed_once(hub: FakeHub) -> None:
    put(final(), CONTENT)
    assert get() == final() and hub.asked("cdn") == []
    assert record.read(final()) is not None


def test_what_the_first_versions_put_beside_its_place_is_found_by_its_record(hub: FakeHub) -> None:
    get()
    hub.repos["me/M-GGUF"] = Repo({"sub/M-Q4_K_M.gguf": CONTENT, "deep/model.gguf": CONTENT})
    known = record.read(final())
    assert known is not None
    record.write(final(), replace(known, file="sub/M-Q4_K_M.gguf"))
    assert pull.present(pull.resolve(NAME)) == [final()]
    record.write(final(), replace(known, file="deep/M-Q4_K_M.gguf"))
    assert pull.present(pull.resolve(NAME)) is None
    assert get() == final().parent / "sub" / "M-Q4_K_M.gguf"


def test_another_file_of_the_repository_is_not_replaced(hub: FakeHub) -> None:
    get()
    known = record.read(final())
    assert known is not None
    record.write(final(), replace(known, file="Q4_K_M/M-Q4_K_M.gguf"))
    hub.repos["me/M-GGUF"].files["M-Q4_K_M.gguf"] = model(5000)
    assert "fetched from hf:me/M-GGUF/Q4_K_M/M-Q4_K_M.gguf, and hf:me/M-GGUF/M-Q4_K_M.gguf" in refused().message


def test_the_revision_that_was_typed_is_remembered(hub: FakeHub) -> None:
    def revision() -> str:
        known = record.read(final())
        assert known is not None
        return known.revision

    get()
    assert revision() == ""
    assert pull.present(pull.resolve("hf:me/M-GGUF@main:Q4_K_M")) == [final()]
    assert revision() == "main"
    pull.present(pull.resolve(NAME))
    assert revision() == "main"
    found = pull.resolve(f"hf:me/M-GGUF@{COMMIT}")
    assert found.name == f"hf:me/M-GGUF@{COMMIT}:Q4_K_M"
    final().unlink()
    pull.fetch(found, lambda done, total: None)
    assert revision() == COMMIT


def test_what_the_users_registry_says_wrongly_is_blamed_on_it(hub: FakeHub) -> None:
    own = Path(os.environ["PAGEDRUN_CONFIG"]) / "models.toml"
    written = own.read_text()
    for size, sha256 in ((len(CONTENT), "0" * 64), (len(CONTENT) + 1, hashlib.sha256(CONTENT).hexdigest())):
        entry = f'source = "hf:me/M-GGUF"\nfile = "M-Q4_K_M.gguf"\nsize = {size}\nsha256 = "{sha256}"\n'
        own.write_text(f"{written}\n[models.mine]\n{entry}")
        assert refused("mine").hint == f"is what {own} says about the size and sha256 of mine right?"
