"""The card on the Hub is read before it is replaced: nothing that people wrote there is lost without a word.

A folder stands for the repository here; test_hub.py pushes to a server.
"""

import logging
import shutil

import pytest
import yaml
from huggingface_hub import errors
from test_model_card import facts_named, metadata

from hf_lwal.model_card import write_card
from hf_lwal.model_card.files import Found, in_folder, on_the_hub
from hf_lwal.model_card.slots import slot

FACTS = facts_named(["x"], license="apache-2.0", tags=["ours"], dataset_id="a/b")
LATER = facts_named(
    ["x"],
    license="apache-2.0",
    tags=["ours"],
    dataset_id="a/b",
    history=[{"step": 20, "accuracy": 0.875}],
    measured_step=20,
    train=None,
)


class Hub:
    """A repository with one branch, and a folder that is pushed to it."""

    def __init__(self, folder):
        self.local, self.remote = folder / "local", folder / "remote"
        self.local.mkdir()
        self.remote.mkdir()

    def write(self, facts=FACTS):
        return write_card(self.local, facts, published=in_folder(self.remote))

    def push(self, facts=FACTS):
        text = self.write(facts)
        for path in self.local.iterdir():
            shutil.copy(path, self.remote)
        return text

    def new_folder(self):
        shutil.rmtree(self.local)
        self.local.mkdir()

    def edit(self, change, folder=None):
        path = (folder or self.remote) / "README.md"
        path.write_bytes(change(path.read_bytes().decode()).encode())

    def edit_metadata(self, **changes):
        def change(text):
            data = {**metadata(text), **changes}
            kept = {key: value for key, value in data.items() if value is not None}
            return f"---\n{yaml.safe_dump(kept)}---\n{text.split('---', 2)[2].lstrip()}"

        self.edit(change)

    @property
    def card(self):
        return (self.remote / "README.md").read_text(encoding="utf-8")

    @property
    def kept_aside(self):
        return sorted(path.name for path in self.remote.glob("README.old-*.md"))


@pytest.fixture
def hub(tmp_path):
    return Hub(tmp_path)


def in_notes(text):
    return lambda card: card.replace(slot("notes"), slot("notes", text))


@pytest.mark.parametrize("fresh", [False, True], ids=["same folder", "new folder"])
class TestEditedOnTheHub:
    def test_text_in_a_slot_stays_through_every_later_push(self, hub, fresh):
        """The next push from the folder it came from took the local card for the newest one."""
        hub.push()
        hub.edit(in_notes("Written on the web."))
        for _ in range(3):
            if fresh:
                hub.new_folder()
            assert slot("notes", "Written on the web.") in hub.push(LATER)
        assert "87.5 %" in hub.card
        assert not hub.kept_aside

    def test_it_can_be_changed_and_taken_back_between_two_pushes(self, hub, fresh):
        hub.push()
        for text in ("Alpha.", "Beta."):
            hub.edit(in_notes(text) if text == "Alpha." else lambda card: card.replace("Alpha.", "Beta."))
            if fresh:
                hub.new_folder()
            assert slot("notes", text) in hub.push()
        hub.edit(lambda card: card.replace(slot("notes", "Beta."), slot("notes")))
        if fresh:
            hub.new_folder()
        assert slot("notes") in hub.push(LATER)
        assert not hub.kept_aside

    def test_text_outside_the_slots_is_kept_aside_and_pushed(self, hub, fresh, caplog):
        hub.push()
        hub.edit(lambda card: card.replace("## Limits", "## Limits\n\nNot for children."))
        edited = hub.card
        if fresh:
            hub.new_folder()
        with caplog.at_level(logging.WARNING, logger="hf_lwal"):
            assert "Not for children" not in hub.push()
        assert "is kept as README.old-1.md" in caplog.text
        assert (hub.remote / "README.old-1.md").read_text(encoding="utf-8") == edited
        hub.push(LATER)
        assert hub.kept_aside == ["README.old-1.md"]

    def test_metadata_stays_whatever_the_key(self, hub, fresh):
        """Only what the package has no opinion on was kept: a licence that someone corrected came back."""
        hub.push()
        tags = [tag for tag in metadata(hub.card)["tags"] if tag != "ours"] + ["theirs"]
        theirs = {
            "license": "mit",
            "pipeline_tag": "zero-shot-classification",
            "library_name": "setfit",
            "language": ["de", "fr"],
            "datasets": ["c/d"],
            "base_model": "c/base",
            "inference": False,
            "widget": [{"text": "Ask this."}],
            "extra_gated_prompt": "read: this",
        }
        hub.edit_metadata(tags=tags, **theirs)
        for facts in (FACTS, LATER, FACTS):
            if fresh:
                hub.new_folder()
            found = metadata(hub.push(facts))
            assert {key: found[key] for key in theirs} == theirs
            assert "theirs" in found["tags"]
            assert "ours" not in found["tags"]
        assert not hub.kept_aside, "metadata alone are no reason"

    def test_a_card_that_is_replaced_wholly_becomes_a_note(self, hub, fresh):
        hub.push()
        hub.edit(lambda _: "---\nlicense: mit\n---\n# Mine\n\nAll by hand.\n")
        if fresh:
            hub.new_folder()
        for facts in (FACTS, LATER):
            text = hub.push(facts)
            assert slot("notes", "# Mine\n\nAll by hand.") in text
            # Nobody says the licence anew, so the one that a person chose holds.
            assert metadata(text)["license"] == "mit"

    def test_a_deleted_card_is_written_again(self, hub, fresh):
        hub.push()
        (hub.remote / "README.md").unlink()
        if fresh:
            hub.new_folder()
        assert "## Limits" in hub.push()
        assert not hub.kept_aside

    def test_line_ends_and_marks_of_windows_are_no_changes(self, hub, fresh):
        before = hub.push()
        hub.edit(lambda card: "\ufeff" + card.replace("\n", "\r\n"))
        if fresh:
            hub.new_folder()
        assert hub.push() == before
        hub.edit(lambda card: in_notes("Mine.\n\nTwo lines.")(card).replace("\n", "\r\n"))
        if fresh:
            hub.new_folder()
        assert slot("notes", "Mine.\n\nTwo lines.") in hub.push()
        assert not hub.kept_aside

    def test_bytes_that_are_no_text_are_kept_aside(self, hub, fresh):
        hub.push()
        (hub.remote / "README.md").write_bytes("Müll".encode("latin-1"))
        if fresh:
            hub.new_folder()
        hub.push()
        assert (hub.remote / "README.old-1.md").read_bytes() == "Müll".encode("latin-1")

    def test_a_card_of_an_earlier_version_is_treated_with_care(self, hub, fresh):
        """It has no record of what was pushed: texts of both places stay."""
        hub.push()
        (hub.remote / "card_facts.json").write_text("{}")
        (hub.local / "card_facts.json").write_text("[]")
        hub.edit(in_notes("Written on the web."))
        hub.edit_metadata(license="mit", inference=False)
        if fresh:
            hub.new_folder()
        text = hub.push()
        assert slot("notes", "Written on the web.") in text
        assert metadata(text)["inference"] is False


class TestEditedInBothPlaces:
    def test_text_of_the_folder_joins_that_of_the_hub(self, hub):
        hub.push()
        hub.edit(in_notes("Web."))
        hub.edit(lambda card: card.replace(slot("limitations"), slot("limitations", "Folder.")), hub.local)
        for facts in (FACTS, LATER):
            text = hub.push(facts)
            assert slot("notes", "Web.") in text
            assert slot("limitations", "Folder.") in text
        assert not hub.kept_aside

    def test_of_two_texts_for_one_slot_the_other_is_kept_aside(self, hub, caplog):
        hub.push()
        hub.edit(in_notes("Web."))
        hub.edit(in_notes("Folder."), hub.local)
        with caplog.at_level(logging.WARNING, logger="hf_lwal"):
            text = hub.push()
        assert slot("notes", "Web.") in text
        assert "other user text, which counts: the old one is kept as README.old-1.md" in caplog.text
        assert slot("notes", "Folder.") in (hub.remote / "README.old-1.md").read_text(encoding="utf-8")

    def test_a_text_that_was_only_added_to_is_no_conflict(self, hub):
        hub.push()
        hub.edit(in_notes("Common.\n\nAdded on the web."))
        hub.edit(in_notes("Common."), hub.local)
        assert slot("notes", "Common.\n\nAdded on the web.") in hub.push()
        assert not hub.kept_aside

    def test_a_card_written_before_the_push_loses_nothing(self, hub):
        """`hf-lwal card`, then a push: the local card is newer, and knows nothing of the Hub."""
        hub.push()
        hub.edit(in_notes("Web."))
        write_card(hub.local, LATER)
        assert slot("notes", "Web.") in hub.push(LATER)

    def test_text_written_in_the_folder_alone_is_pushed(self, hub):
        hub.push()
        hub.edit(in_notes("Folder."), hub.local)
        hub.write()
        hub.write(LATER)
        assert slot("notes", "Folder.") in hub.push(LATER)
        hub.edit(lambda card: card.replace("Folder.", "Changed."), hub.local)
        assert slot("notes", "Changed.") in hub.push()
        assert not hub.kept_aside

    def test_two_folders_push_in_turn(self, hub, tmp_path):
        hub.push()
        other = tmp_path / "other"
        shutil.copytree(hub.local, other)
        hub.edit(in_notes("From the first folder."), hub.local)
        hub.push()
        hub.local = other
        assert slot("notes", "From the first folder.") in hub.push(LATER)


def test_what_a_caller_says_anew_wins(hub):
    hub.push()
    hub.edit_metadata(license="mit")
    assert metadata(hub.push())["license"] == "mit"
    again = facts_named(["x"], license="cc0-1.0", tags=["ours"], dataset_id="a/b")
    assert metadata(hub.push(again))["license"] == "cc0-1.0"


def test_old_tags_and_results_of_ours_do_not_pile_up(hub):
    """Every training with another number of rows left its `dataset_size:…` among the tags for ever."""
    hub.push()
    assert "dataset_size:600" in metadata(hub.card)["tags"]
    other = facts_named(["x"], dataset_id="e/f", dataset_name="Other")
    found = metadata(hub.push(facts_named(["x"], dataset_id="e/f", dataset_name="Other", train=None)))
    assert not [tag for tag in found["tags"] if tag.startswith("dataset_size")]
    assert "ours" not in found["tags"]
    measured = {result["dataset"]["type"] for result in metadata(hub.push(other))["model-index"][0]["results"]}
    assert measured == {"e/f"}


class TestReading:
    def ask(self, monkeypatch, answer):
        asked = []

        def download(repository, file, **place):
            asked.append((repository, file, place))
            if isinstance(answer, Exception):
                raise answer
            return str(answer / file)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        return asked, on_the_hub("me/model", "branch", "secret")

    def test_the_branch_and_the_token_of_the_push_are_used_and_the_cache_is_not(self, monkeypatch, hub):
        text = hub.push()
        asked, found = self.ask(monkeypatch, hub.remote)
        assert found.text == text
        assert found.record["digest"] == found.digest
        assert {file for _, file, _ in asked} == {"README.md", "card_facts.json"}
        assert all(place == {"revision": "branch", "token": "secret", "force_download": True} for *_, place in asked)

    @pytest.mark.parametrize("kind", ["RemoteEntryNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError"])
    def test_where_there_is_none_nobody_is_warned(self, monkeypatch, kind, caplog):
        error = getattr(errors, kind)
        assert self.ask(monkeypatch, error.__new__(error))[1] == Found()  # __init__ wants the server's answer
        assert not caplog.records

    @pytest.mark.parametrize(
        "error", [ConnectionError("no route"), errors.LocalEntryNotFoundError("offline"), ValueError()]
    )
    def test_a_card_that_cannot_be_read_is_told(self, monkeypatch, error, caplog):
        assert self.ask(monkeypatch, error)[1] == Found()
        assert "The card of me/model on the Hub could not be read" in caplog.text
