"""Labels meet the right nouns, and distances are the edges one counts in the tree by hand."""

import json
import sys
import tarfile

import numpy as np
import pytest
from tiny_wordnet import write_wordnet

from hf_lwal.hierarchy.wordnet import (
    SENSES,
    WordNetMissingError,
    normalised,
    open_wordnet,
    senses_of,
    wordnet_distances,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_wordnet(tmp_path_factory.mktemp("any") / "dict")


@pytest.fixture
def no_corpus(monkeypatch, tmp_path):
    """nltk as it is right after its installation, whatever this machine has."""
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    return nltk


def test_distances_are_the_edges_of_the_tree(folder, no_corpus):
    labels = ["Cat", "dog", "tool", "unicorn"]
    distances, synsets = wordnet_distances(labels, folder)
    assert synsets == ["cat.n.01", "dog.n.01", "tool.n.01", None]
    # cat - feline - animal - dog; cat - feline - animal - entity - artifact - tool
    expected = [[0, 3, 5], [3, 0, 4], [5, 4, 0]]
    np.testing.assert_array_equal(distances[:3, :3], expected)
    assert np.isnan(distances[3]).all()
    assert np.isnan(distances[:, 3]).all()


def test_senses_replace_the_first_one_and_leave_labels_out(folder, no_corpus):
    """Silent failure: a seal that is a tool, since that sense comes first, distorts the score without a sign."""
    assert wordnet_distances(["seal", "cat"], folder)[0][0, 1] == 6
    distances, synsets = wordnet_distances(["Seal", "cat", "tool"], folder, {"seal": "seal.n.02", "tool": None})
    assert synsets == ["seal.n.02", "cat.n.01", None]
    assert distances[0, 1] == 3


@pytest.mark.parametrize("label", ["spider+monkey", "Spider Monkey", " spider-monkey "])
def test_names_of_data_sets_are_found_as_nouns(folder, no_corpus, label):
    assert normalised(label) == "spider_monkey"
    assert wordnet_distances([label], folder)[1] == ["spider_monkey.n.01"]


@pytest.mark.parametrize("ending", ["tar.xz", "tar.gz"])
def test_an_archive_is_read_wherever_its_files_lie(folder, no_corpus, tmp_path, ending):
    path = tmp_path / f"wordnet.{ending}"
    with tarfile.open(path, f"w:{ending.removeprefix('tar.')}") as archive:
        archive.add(folder, "WordNet-3.0/dict")
    before = list(no_corpus.data.path)
    assert wordnet_distances(["cat", "dog"], path)[0][0, 1] == 3
    assert no_corpus.data.path == before, "nltk's search path must be left as it was"


def test_nltks_own_corpus_is_found(no_corpus, tmp_path):
    write_wordnet(tmp_path / "corpora" / "wordnet")
    assert wordnet_distances(["cat", "dog"])[0][0, 1] == 3


def test_missing_data_says_how_to_get_it(no_corpus):
    with (
        pytest.raises(WordNetMissingError, match=r"python -m nltk.downloader wordnet.*--wordnet PATH"),
        open_wordnet(),
    ):
        pass


def test_a_missing_nltk_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(WordNetMissingError, match=r'pip install "hf-lwal\[wordnet\]"'), open_wordnet():
        pass


def test_bad_files_are_one_clear_sentence(no_corpus, tmp_path):
    (tmp_path / "broken.tar.xz").write_bytes(b"not an archive")
    for path, message in [
        ("absent", "no file or folder"),
        ("broken.tar.xz", "not a whole tar archive"),
        ("", "holds no file called data.noun"),
    ]:
        with pytest.raises(WordNetMissingError, match=message), open_wordnet(tmp_path / path):
            pass


def test_an_unknown_synset_is_named(folder, no_corpus):
    with pytest.raises(ValueError, match=r"no synset 'cat.n.09', which the senses give for 'cat'"):
        wordnet_distances(["cat"], folder, {"cat": "cat.n.09"})


def test_senses_by_name_and_from_a_file(tmp_path):
    assert senses_of(None) == {}
    assert senses_of("awa2")["otter"] == "otter.n.02"
    path = tmp_path / "senses.json"
    path.write_text(json.dumps({"otter": "otter.n.01", "seal": None}))
    assert senses_of(path) == {"otter": "otter.n.01", "seal": None}
    path.write_text('{"otter": 3}')
    with pytest.raises(ValueError, match=r"JSON object of labels and synset names"):
        senses_of(path)
    with pytest.raises(ValueError, match=r"'imagenet' are neither one of awa2, cifar10, cifar100, fashion_mnist nor"):
        senses_of("imagenet")


def test_the_papers_animals_and_clothes():
    """The paper compares 23 of 50 animals, 8 of them by another than the first sense, and 8 of 10 clothes."""
    assert len([sense for sense in SENSES["awa2"].values() if sense is None]) == 50 - 23
    assert len([sense for sense in SENSES["awa2"].values() if sense]) == 8
    assert {normalised("T-shirt/top"), normalised("Ankle boot")} == set(SENSES["fashion_mnist"])
