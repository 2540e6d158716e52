"""Push and pull with the real huggingface_hub client, against a server that speaks the Hub's protocol.

Three processes play the people: one with hf_lwal, one without it, and one without a network. Each runs its scenarios
in one go, since importing transformers costs seconds; the tests look at what the processes and the server saw.
"""

import json
import os

import numpy as np
import pytest
from filelock import FileLock
from hub_client import run_client
from hub_scenarios import LABELS
from hub_server import hub_server

from hf_lwal.modeling.hub_code import code_files

# Three processes import transformers; on a busy machine that takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

CODE = {f"lwal_code/{path.name}" for path in code_files()}
MODEL = {".gitattributes", "README.md", "config.json", "label_table.json", "model.safetensors"}
TRAINED = {*MODEL, "tokenizer.json", "tokenizer_config.json", "training_args.bin", "heat_map.png"}


def _play(folder):
    """Run all processes; what they and the server saw, as plain values."""
    home = folder / "home"
    with hub_server() as hub:
        run_client(hub, "hub_worker.py", str(folder), "scenarios", "failures", "training", "samples", home=home)
        run_client(hub, "hub_stranger.py", str(folder), home=folder / "stranger")
        online = len(hub.requests)
        run_client(hub, "hub_worker.py", str(folder), "offline", home=home, offline=True)
        repos = {
            repo.id: {
                "private": repo.private,
                "titles": [commit.title for commit in repo.history()][-2::-1],
                "files": {path: None if b.lfs else b.data.decode("latin-1") for path, b in repo.at().files.items()},
            }
            for repo in hub.repos.values()
        }
        seen = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        return {**seen, "repos": repos, "requests": hub.requests[:online], "when offline": hub.requests[online:]}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What everybody saw; several workers of pytest share one play."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    file = shared / "hub_play.json"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(json.dumps(_play(tmp_path_factory.mktemp("hub"))))
    return json.loads(file.read_text())


@pytest.fixture
def seen(played):
    """``seen(group, scenario)``: what a scenario returned; fails with its traceback when it crashed."""

    def of(group, scenario):
        found = played[group][scenario]
        assert "crashed" not in found, found["crashed"]
        return found

    return of


@pytest.fixture
def repo(played):
    """``repo(name)``: alice's repository of that name, as the server has it at the end."""
    return lambda name: played["repos"][f"alice/{name}"]


# -- push and pull ----------------------------------------------------------------------------------------------------


def test_a_pulled_model_is_the_pushed_one(seen):
    """Sibling libraries lose heads or label vectors on the way; here every byte and every logit arrives."""
    found = seen("scenarios", "push_and_pull")
    assert len(set(found["digests"])) == 1
    assert found["pulled"] == found["local"]
    assert found["labels"] == list(LABELS.values())


def test_the_installed_library_wins_over_the_pushed_code(seen):
    """An outdated copy in a repository must not replace the library, even where somebody trusts remote code."""
    found = seen("scenarios", "push_and_pull")
    assert found["class"] == "hf_lwal.modeling.modeling_lwal.LwALForSequenceClassification"
    assert found["trusting"] == "hf_lwal.modeling.modeling_lwal"


def test_what_a_push_carries(repo):
    assert set(repo("toy-text")["files"]) == {*MODEL, *CODE, "tokenizer.json", "tokenizer_config.json"}
    table = json.loads(repo("toy-text")["files"]["label_table.json"])
    assert [label["name"] for label in table["labels"]] == list(LABELS.values())


def test_pipelines_find_the_model_by_its_id(seen):
    """Without a pipeline_tag on the card, pipeline(model=id) cannot know what to do."""
    found = seen("scenarios", "pipelines")
    assert found["task"] == "text-classification"
    for row, expected in zip(found["named"], found["expected"], strict=True):
        assert [answer["label"] for answer in row] == [answer["label"] for answer in expected]
        assert [answer["score"] for answer in row] == pytest.approx([answer["score"] for answer in expected], rel=1e-5)


def test_revisions_keep_models_apart(seen, repo):
    found = seen("scenarios", "revisions")
    assert found["loaded"] == found["wanted"]
    assert found["ours"] == found["wanted"][0]
    assert len(set(found["wanted"])) == 4
    assert "nowhere is not a valid git identifier" in found["wrong"]
    assert found["again"], "an unchanged push must not make a commit"
    upload = "Upload LwALForSequenceClassification"
    assert found["commits"] == [upload, "better", upload, "initial commit"]
    assert found["refs"] == ["refs/heads/main", "refs/heads/experiment", "refs/tags/v1", "refs/pr/1"]
    assert repo("versions")["titles"] == ["Upload LwALForSequenceClassification", "better"]


def test_saving_with_a_push_carries_the_label_table(seen, repo):
    """transformers uploads inside save_pretrained, before a class that adds a file of its own has its turn."""
    seen("scenarios", "companions")
    assert set(repo("companions")["files"]) == {*MODEL, *CODE}


def test_code_can_be_left_out(seen, repo):
    found = seen("scenarios", "companions")
    assert set(repo("no-code")["files"]) == MODEL
    assert "auto_map" not in json.loads(repo("no-code")["files"]["config.json"])
    assert found["no_code_stays"] is False


def test_a_local_copy_does_not_refer_to_code_that_is_not_there(seen):
    """A configuration pulled with an auto_map and saved without the modules would break for who trusts it."""
    found = seen("scenarios", "companions")
    assert found["auto_map_after_resaving"] is None
    assert found["resaved"] == ["config.json", "label_table.json", "model.safetensors"]


def test_code_of_an_earlier_push_is_taken_back(repo):
    """An upload only adds and replaces: code left out of a push stayed in the repository."""
    assert set(repo("code-taken-back")["files"]) == {*MODEL, "start.py"}


def test_peoples_edits_of_the_card_survive_a_push(seen, repo):
    found, card = seen("scenarios", "cards"), repo("cards")["files"]["README.md"]
    assert "## My own words" in card
    assert "license: mit" in card
    assert "pipeline_tag: zero-shot-classification" in card
    assert all(f"- {tag}\n" in card for tag in ("banking", "lwal", "hf-lwal"))
    assert "Invalid metadata in README.md" in found["broken"]


def test_large_files_in_parts_and_through_the_cdn(seen, played):
    """The server's second port refuses requests that carry the token."""
    found = seen("scenarios", "large_files")
    assert found["digest"] == found["wanted"]
    assert sum("/-/lfs/alice/parts/" in line and line.endswith(("/1", "/2")) for line in played["requests"]) == 2
    assert any(line.startswith("GET /-/cdn/alice/parts/") for line in played["requests"])


def test_files_of_a_repository(seen):
    found = seen("scenarios", "files")
    assert found["odd"] == "odd"
    assert set(found["files"]) == {*MODEL, *CODE, "copy.safetensors"}
    assert found["snapshot"] == seen("scenarios", "push_and_pull")["digests"][0]
    assert "A file with this name doesn't exist" in found["twice"]
    assert "Entry Not Found" in found["missing"]


def test_who_may_read(seen, repo):
    found = seen("scenarios", "access")
    assert found["whoami"] == "alice"
    assert found["owner"]
    assert repo("secret")["private"]
    for who in ("none", "bob"):
        assert "pass a token having permission to this repo" in found["secret"][who]
        assert "You are trying to access a gated repo" in found["gated"][who]
    for kind in ("secret", "gated"):
        assert "Invalid credentials" in found[kind]["invalid"]
    assert "is not a valid model identifier" in found["no repo"]


def test_who_may_write(seen, repo, played):
    found = seen("scenarios", "access")
    assert "403 Forbidden" in found["read token"]
    assert "only the read role" in found["read token"]
    assert "don't have write access" in found["bob"]
    assert "don't have the rights to create" in found["new by bob"]
    assert "401 Unauthorized" in found["nobody"]
    assert repo("toy-text")["titles"] == ["Upload LwALForSequenceClassification", "Upload tokenizer"]
    assert "alice/new" not in played["repos"]


# -- without hf_lwal, without a network -------------------------------------------------------------------------------


def test_a_process_without_hf_lwal_predicts_the_same(seen, played):
    found = played["stranger"]
    assert found["hf_lwal"] == []
    assert found["modules"] == ["transformers_modules"]
    assert found["logits"] == seen("scenarios", "push_and_pull")["local"]
    assert found["image"] == seen("scenarios", "images")["local"]
    assert found["labels"] == [row[0]["label"] for row in seen("scenarios", "pipelines")["expected"]]


def test_code_runs_only_where_it_is_trusted(played):
    """Nothing of a repository runs unasked, and the refusal says what to pass."""
    assert "Please pass the argument `trust_remote_code=True`" in played["stranger"]["untrusting"]
    assert "model type `lwal`" in played["stranger"]["without code"]


def test_a_stranger_can_save_and_push_again(played):
    found = played["stranger"]
    assert found["again"] == found["pushed"] == found["logits"]
    assert set(found["files"]) == {"config.json", "label_table.json", "model.safetensors", *CODE}
    assert set(played["repos"]["alice/from-a-stranger"]["files"]) == {*MODEL, *CODE}


def test_a_sentence_encoder_keeps_its_pooling_on_the_way(seen, played):
    """Read by another pooling on the other side, a model answers as if it had been trained badly."""
    found = seen("scenarios", "sentence_encoder")
    assert found["pooling"] == [["mean", True]] * 3
    assert len(set(found["digests"])) == 1
    by_code = played["stranger"]["pooled"]
    assert np.allclose(by_code["toy-pooled"], found["logits"], atol=1e-5)
    assert np.allclose(by_code["toy-pooled-fold"], found["folded"], atol=1e-5)
    assert np.array_equal(np.argmax(found["folded"], axis=1), np.argmax(found["logits"], axis=1))


def test_offline_from_the_cache(seen, played):
    found = seen("offline", "from_the_cache")
    assert found["pooling"] == "mean"
    assert found["digest"] == found["ours"] == seen("scenarios", "push_and_pull")["digests"][0]
    assert found["labels"] == found["expected"]
    assert "couldn't find them in the cached files" in found["absent"]
    assert played["when offline"] == []


# -- the trainer ------------------------------------------------------------------------------------------------------

STEPS = ["Training in progress, step 2", "Training in progress, step 4"]
TITLES = {
    "end": [],
    "every_save": STEPS,
    "checkpoint": [title for step in STEPS for title in (step, f"{step}, checkpoint")],
    "all_checkpoints": [title for step in STEPS for title in (step, f"{step}, checkpoint")],
}
FOLDERS = {
    "end": [],
    "every_save": [],
    "checkpoint": ["last-checkpoint"],
    "all_checkpoints": ["checkpoint-2", "checkpoint-4"],
}


@pytest.mark.parametrize("strategy", TITLES)
def test_every_strategy_pushes_the_whole_model(seen, repo, strategy):
    assert seen("training", "strategies")[strategy], "the pulled model is not the trained one"
    found = repo(f"run-{strategy}")
    assert found["titles"] == [*TITLES[strategy], "End of training"]
    assert {*TRAINED, *CODE} <= set(found["files"])
    folders = {path.split("/")[0] for path in found["files"] if "/" in path}
    assert folders - {"runs", "lwal_code"} == set(FOLDERS[strategy])
    for folder in FOLDERS[strategy]:
        assert {f"{folder}/{name}" for name in ("label_table.json", "optimizer.pt", "rng_state.pth")} <= set(
            found["files"]
        )


def test_pushes_during_training_carry_table_card_and_pictures(repo):
    """Stock transformers copies weights and configuration only, so a run that dies leaves half a model on the Hub."""
    assert repo("slow")["titles"][-1].startswith("Training in progress")
    assert {*TRAINED, *CODE} <= set(repo("slow")["files"])


def test_a_pulled_checkpoint_resumes_exactly(seen):
    assert seen("training", "resume") == {"step": 6, "same": True, "moved": True}


def test_a_push_by_hand_private_and_without_code(seen, repo):
    assert seen("training", "called_by_hand")["same"]
    assert repo("by-hand")["private"]
    assert not CODE & set(repo("by-hand")["files"])
    assert {*TRAINED} <= set(repo("by-hand")["files"])


def test_an_adapter_carries_the_label_table(seen, repo):
    """PEFT saves no buffers of the model and no file beside the adapter by itself."""
    assert seen("training", "adapter") == {"same": True, "trained": True}
    files = set(repo("adapter")["files"])
    assert {
        "adapter_config.json",
        "adapter_model.safetensors",
        "label_table.json",
        "README.md",
        "heat_map.png",
    } <= files
    assert repo("adapter")["titles"] == ["Training in progress, step 4"]


def test_a_failed_push_is_told_and_training_goes_on(seen, repo):
    """transformers pushes in the background and never looks at the outcome."""
    found = seen("training", "failed_push")
    assert len(found["warnings"]) == 1
    assert "to alice/failing during training failed: HfHubHTTPError" in found["warnings"][0]
    assert "the next push sends them again" in found["warnings"][0]
    assert found["step"] == 4
    assert found["local"]
    assert repo("failing")["titles"] == ["Training in progress, step 4", "End of training"]


def test_a_checkpoint_is_not_deleted_while_it_is_uploaded(seen, repo):
    found = seen("training", "slow_push")
    assert found["slow"] == {"warnings": [], "left": ["checkpoint-2"], "pushed": 2}
    assert found["slow-best"] == {"warnings": [], "left": ["checkpoint-1"], "pushed": 2}
    assert repo("slow")["titles"].count("Training in progress, step 1, checkpoint") == 1


def test_a_card_edited_on_the_hub_keeps_its_edits(seen):
    """Every push from the folder that pushed first took the card there for the newest: people's words were gone."""
    found = seen("training", "edited_card")
    assert "Edited while it trains." in found["main"]
    assert "Edited after training." in found["main"]
    assert "Edited on a branch." in found["other"]
    assert "Edited on a branch." not in found["main"]
    assert "license: mit" in found["main"]
    assert "Outside the lines." not in found["main"]
    assert {"README.old-1.md", "README.old-2.md"} <= set(found["files"])


def test_old_checkpoints_are_gone_before_a_push_lists_the_folder(seen):
    """Listing fails where a folder is deleted at that moment, and the push with it."""
    found = seen("training", "rotated")
    each = [[f"checkpoint-{step}"] for step in (1, 2, 3, 4)]
    assert found["every_save"] == each
    assert found["checkpoint"] == each
    assert found["best"] == [["checkpoint-1"], *(["checkpoint-1", f"checkpoint-{step}"] for step in (2, 3, 4))]


def test_pictures_of_rows_travel_and_are_taken_back(seen, repo):
    """An upload only adds and replaces: a row that must not be shown would stay in the repository for ever."""
    found = seen("samples", "samples")
    assert found["during"] == ["sample_training_1.png", "sample_training_2.png"]
    assert found["after"] == ["sample_mine.png"]
    assert "sample_training" not in found["card"]
    assert "Rows that the card no longer shows" in repo("pictures")["titles"]


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("cut for ever", "Error while uploading 'model.safetensors' to the Hub"),
        ("cut commit", "Server disconnected without sending a response"),
        ("500 on upload", "Error while uploading 'model.safetensors' to the Hub"),
        ("500 on commit", "500 Internal Server Error"),
        ("503 for ever", "503 Service Unavailable"),
    ],
)
def test_a_push_that_fails_says_so_and_leaves_the_repository_whole(seen, case, sentence):
    found = seen("failures", "uploads")
    assert sentence in found["errors"][case]
    assert found["whole"], "after all these failures the repository must still hold the first model"


def test_a_push_survives_a_short_disturbance(seen, repo):
    found = seen("failures", "uploads")
    assert found["recovered"] == {"cut once": "", "429": ""}
    assert found["healed"]
    assert len(repo("faults")["titles"]) == 3


def test_a_failed_push_leaves_the_folder_whole(seen, repo):
    found = seen("failures", "failed_push_of_a_folder")
    assert "500 Internal Server Error" in found["error"]
    assert found["same"]
    assert set(found["files"]) == {*MODEL, "lwal_code"} - {".gitattributes"}
    assert repo("failed")["titles"] == []


def test_a_stale_push_does_not_overwrite(seen, repo):
    found = seen("failures", "stale")
    assert "412" in found["error"]
    assert "A commit has happened since" in found["error"]
    assert found["kept"]
    assert len(repo("stale")["titles"]) == 2


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("cut for ever", "The download of alice/toy-text broke off"),
        ("500 on the weights", "500 Internal Server Error"),
        ("500 on everything", "We couldn't connect to"),
    ],
)
def test_a_pull_that_fails_says_so_and_the_next_one_is_right(seen, case, sentence):
    error, next_one = seen("failures", "downloads")[case]
    assert sentence in error
    assert next_one


def test_a_cut_download_goes_on(seen, played):
    assert seen("failures", "downloads")["cut once"] == ["", True]
    assert seen("failures", "resumed")["seen"] == ["", True]
    assert any(line.endswith(" bytes=30000-") for line in played["requests"]), "it started over"
