"""The model card: what it says, that nobody's text is lost, and that no name can break it."""

import contextlib
import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image
from toy import separable_text, word_tokenizer

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.cli.main import main
from hf_lwal.data import load_embedded
from hf_lwal.model_card import CardFacts, LabelFacts, SplitFacts, read_facts, render, write_card
from hf_lwal.model_card.metadata import hub_id
from hf_lwal.model_card.slots import slot
from hf_lwal.model_card.text import code, heading_text, visible
from hf_lwal.model_card.training import history_of, settings_of
from hf_lwal.modeling.tasks import TASKS, task_of_class

HOSTILE = [
    "**bold** [link](http://evil.example) ![image](x.png)",
    "<script>alert(1)</script>",
    "<!-- user text ends: notes -->",
    "a|b\\|c\\",
    "../../etc/passwd",
    "line\nbreak\r\n# heading\n---\n",
    "right \u202e to \u2066 left\u200f",
    "$x$ $$\\frac{1}{2}$$ \\(y\\)",
    "` `` ```\n```",
    "yaml: {a: [1, *b]} # no",
    "https://evil.example www.evil.example me@evil.example",
    "{{ jinja }} {% raw %} $name ${name}",
    "\ud800 lone \x00 \x85 \u2028",
    "",
    "   ",
    "- item",
    "שלום עולם",
    "&lt;b&gt; &#42;",
]
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def facts_named(names, **more):
    """Facts in which every text is one of ``names``, in turn."""
    names = list(names)

    def name(place):
        return names[place % len(names)]

    rows = [(name(i), i, [(name(i + 1), 0.5), (name(i + 2), 0.75)]) for i in range(6)]
    return CardFacts(
        **{
            "name": name(0),
            "task": "text",
            "num_labels": 6,
            "base_model": f"{name(1)} (1)",  # never empty and never an id, which would be a link
            "architecture": "BertForSequenceClassification",
            "processor": "AutoTokenizer",
            "labels": LabelFacts(6, 32, 2.5, 1.25, rows, [(name(3), name(4), 0.5)], unseen=[name(5)]),
            "dataset_name": f"{name(2)} (2)",
            "train": SplitFacts(600, [name(6), name(7)], (90, 100.0, 110), (3, 7.5, 12), f"{name(8)} (4)"),
            "evaluation": SplitFacts(400, [name(9)], None, None, f"{name(10)} (5)"),
            "history": [
                {"step": 0, "epoch": 0.0, "loss": 3.0, "accuracy": 0.25, "f1_macro": 0.2},
                {"step": 10, "epoch": 1.0, "loss": 1.0, "accuracy": 0.75, "f1_macro": 0.7, "train_loss": 2.0},
            ],
            "measured_step": 10,
            "last_step": 10,
            "controls": {name(11): [(0, 0.125), (10, 0.5)]},
            "settings": {"learning_rate": 0.001, "optim_args": name(12), "seed": 42},
            "changed": ["learning_rate", "optim_args"],
            "hardware": f"{name(13)} (3)",
            "examples": [(name(14), name(15), 0.5)],
            "versions": {"Python": "3.11"},
            "language": ["en"],
            "tags": [name(16)],
            "pictures": ["dendrogram.png"],
            **more,
        }
    )


def structure(text):
    """Kinds of all Markdown tokens of a card, in order, without the texts."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    kinds = []
    for token in MARKDOWN.parse(body):
        kinds.append(token.type)
        kinds += [(child.type, child.attrGet("href")) for child in token.children or [] if child.type != "text"]
    return kinds


def metadata(text):
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])


MARKS = "`*_[]()<>|\\#&!~$:-\n ab"
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30), st.text(alphabet=MARKS, max_size=20))


class TestHostileNames:
    @given(st.lists(NAMES, min_size=1, max_size=17))
    def test_names_change_texts_and_nothing_else(self, names):
        """A label called ``<script>`` or ``[x](y)`` would otherwise run or lead somewhere on the page of the model."""
        text = render(facts_named(names))
        plain = render(facts_named(["Plain (name)"]))
        # A title is plain text where that is harmless and a code span elsewhere: the only difference allowed.
        expected = structure(plain)
        got = structure(text)
        heading = got.index("heading_open") + 1
        if got[heading + 1 : heading + 2] == [("code_inline", None)]:
            got.pop(heading + 1)
        assert got == expected
        text.encode("utf-8")
        parsed = metadata(text)
        assert set(parsed) == set(metadata(plain))
        assert parsed["pipeline_tag"] == "text-classification"
        assert "lwal" in parsed["tags"]

    @given(NAMES)
    def test_a_name_is_one_code_span_that_shows_it(self, name):
        (token,) = MARKDOWN.parseInline(f"before {code(name)} after")
        spans = [child for child in token.children if child.type == "code_inline"]
        assert [child.type for child in token.children] == ["text", "code_inline", "text"]
        assert spans[0].content == (visible(name) or "(no name)")

    @given(NAMES, NAMES)
    def test_table_cells_keep_their_columns(self, one, other):
        from hf_lwal.model_card.text import table

        tokens = MARKDOWN.parse(table(["a", "b"], [[code(one), code(other)]]))
        cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "td_open"]
        shown = [cell.children[0].content for cell in cells]
        assert shown == [visible(name) or "(no name)" for name in (one, other)]

    @pytest.mark.parametrize("name", HOSTILE)
    def test_characters_that_hide_or_reorder_are_shown_by_number(self, name):
        shown = visible(name)
        assert not set(shown) & set("\u202e\u2066\u200f\x00\x85\u2028\ud800\n\r")
        assert shown or not name.strip()

    def test_ordinary_titles_stay_as_they_are(self):
        assert heading_text("MiniLM-L6 v2.1 (small)") == "MiniLM-L6 v2.1 (small)"
        assert heading_text("www.evil.example") == "`www.evil.example`"

    def test_python_snippets_compile_whatever_the_names(self):
        for name in HOSTILE:
            text = render(facts_named([name]))
            blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
            assert len(blocks) == 3
            for block in blocks:
                compile(block, "card", "exec")

    def test_pictures_are_drawn_whatever_the_names(self, tmp_path):
        """A dollar starts a formula in matplotlib, and a wrong formula is an exception after hours of training."""
        import torch

        vectors = torch.randn(len(HOSTILE), 8, generator=torch.Generator().manual_seed(0))
        write_card(tmp_path, facts_named(HOSTILE), vectors, HOSTILE)
        assert {path.name for path in tmp_path.iterdir()} == {
            *("README.md", "card_facts.json", "dendrogram.png", "label_distances.png"),
        }, "file names come from no label"


class TestMetadata:
    def test_results_are_what_the_hub_reads(self):
        facts = facts_named(["x"], dataset_id="clinc/clinc_oos", dataset_config="plus", dataset_name="CLINC150")
        data = ModelCard(render(facts)).data
        assert [(r.metric_type, r.metric_value, r.metric_name) for r in data.eval_results] == [
            ("accuracy", 0.75, "Accuracy"),
            ("f1", 0.7, "Macro-F1"),
        ]
        (result, _) = data.eval_results
        assert (result.task_type, result.dataset_type) == ("text-classification", "clinc/clinc_oos")
        assert (result.dataset_name, result.dataset_config) == ("CLINC150", "plus")
        assert (data.datasets, data.metrics) == (["clinc/clinc_oos"], ["accuracy", "f1"])
        assert (data.library_name, data.pipeline_tag) == ("transformers", "text-classification")

    def test_test_rows_are_a_result_of_their_own(self):
        text = render(facts_named(["x"], test={"accuracy": 0.5, "loss": 1.0}, dataset_id="a/b"))
        splits = [(r.dataset_split, r.metric_value) for r in ModelCard(text).data.eval_results]
        assert ("test", 0.5) in splits
        assert "| Accuracy | 75.0 % ± 2.2 | 50.0 % |" in text

    @pytest.mark.parametrize("name", ["/home/me/model", "./model", "C:\\model", "a/b/c", "..", "tests", ""])
    def test_what_is_no_id_is_not_given_as_one(self, name):
        """The Hub refuses a card whose base model is a local path, and the push with it."""
        assert hub_id(name) is None
        assert "base_model" not in metadata(render(facts_named(["x"], base_model=name)))

    def test_numbers_that_yaml_cannot_carry_are_left_out(self):
        history = [{"step": 1, "accuracy": float("nan"), "f1_macro": float("inf")}]
        assert "model-index" not in metadata(render(facts_named(["x"], history=history, measured_step=1)))

    def test_additions_of_people_stay(self):
        facts = facts_named(["x"], dataset_id="a/b", language=[])
        data = ModelCard(render(facts))
        own = {"type": "text-classification"}, {"type": "c/d", "name": "Other"}, [{"type": "accuracy", "value": 0.1}]
        raw = metadata(str(data))
        raw["model-index"][0]["results"].append(dict(zip(("task", "dataset", "metrics"), own, strict=True)))
        raw |= {"license": "mit", "language": ["de"], "tags": [*raw["tags"], "mine"], "inference": False}
        raw |= {"base_model": "me/base", "extra_gated_prompt": "read: this"}
        edited = f"---\n{yaml.safe_dump(raw)}---\n{data.text}"
        again = metadata(render(facts, edited))
        assert again["license"] == "mit"
        assert again["language"] == ["de"]
        assert again["tags"][-1] == "mine"
        assert again["inference"] is False
        assert again["extra_gated_prompt"] == "read: this"
        measured_on = [result["dataset"]["type"] for result in again["model-index"][0]["results"]]
        assert measured_on == ["a/b", "c/d"], "the other result stays, and ours is not doubled"

    def test_what_the_caller_says_wins_over_the_old_card(self):
        old = render(facts_named(["x"], license="mit"))
        assert metadata(render(facts_named(["x"], license="apache-2.0"), old))["license"] == "apache-2.0"


def holders(value, path=()):
    """Paths to all texts in a JSON value."""
    if isinstance(value, str):
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from holders(part, (*path, key))


def with_value(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_value(copy[path[0]], path[1:], new)
    return copy


def effects(text):
    """What a card does on a page besides showing letters: headings, links, pictures, HTML, blocks of code."""
    seen = []
    text = re.sub(r"\A---\n.*?\n---\n|<!-- digest of .*", "", text, flags=re.DOTALL)
    for token in MARKDOWN.parse(text):
        for part in (token, *(token.children or [])):
            if part.type in ("heading_open", "image", "fence", "code_block", "hr", "table_open", "blockquote_open"):
                seen.append((part.type, ""))
            elif part.type in ("html_block", "html_inline"):
                seen.append((part.type, part.content.strip()))
            elif part.type == "link_open":
                seen.append((part.type, part.attrGet("href")))
    return seen


FULL = json.loads(
    facts_named(
        ["Plain"],
        method="lwr",
        method_citation="Someone, 2020",
        base_revision="abc",
        dataset_id="a/b",
        dataset_revision="abc",
        modules="Model(\n  (layer): Linear()\n)",
        max_length=12,
        command="hf-lwal train",
        versions={"Python": "3.11"},
        license="mit",
        emissions={"emissions": 1.0, "hardware_used": "abacus"},
        model_id="me/model",
        folder="model",
    ).to_json()
)
FREE = [
    path
    for path in holders(FULL)
    if path[0] not in ("task", "pictures", "processor") and (path[:2] != ("labels", "rows") or path[2] == 0)
]
EFFECTIVE = [
    HOSTILE[0] + HOSTILE[1],
    "<!-- user text ends: notes -->",
    "```\n# out\n<b>",
    "x\n~~~\n</details>\n\n# out\n\n---\n- a | b",
    "` `` [a](http://evil.example) \u202e",
]


class TestHostileFacts:
    """card_facts.json comes with a folder that anyone may have made."""

    @pytest.mark.parametrize("path", FREE, ids=lambda path: "-".join(map(str, path)))
    def test_no_text_has_an_effect_on_the_page(self, path):
        linked = path[0] in ("base_model", "dataset_id", "model_id")  # what is no id is no link
        for labels in [FULL["labels"]] if "method" not in path[0] else [FULL["labels"], None]:
            facts = {**FULL, "labels": labels}
            expected = effects(render(CardFacts.from_json(json.dumps(with_value(facts, path, "Plain")))))
            for text in EFFECTIVE:
                card = render(CardFacts.from_json(json.dumps(with_value(facts, path, text))))
                found = effects(card)
                assert all(one in expected or (linked and "evil" not in one[1]) for one in found), text
                assert len(found) <= len(expected)
                assert "\u202e" not in card

    @pytest.mark.parametrize("path", FREE, ids=lambda path: "-".join(map(str, path)))
    def test_values_of_another_type_are_left_out(self, path):
        """A number where a text was wanted ended `hf-lwal card` with a traceback."""
        for value in (3, None, [1], {"a": 1}, True):
            text = json.dumps(with_value(FULL, path, value))
            if path[0] == "name":
                with pytest.raises(ValueError, match="These are not the facts"):
                    CardFacts.from_json(text)
            else:
                render(CardFacts.from_json(text))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_length", "<b>"),
            ("parameters", "many"),
            ("train", 3),
            ("labels", []),
            ("history", [{"step": "a"}]),
            ("history", [{"accuracy": 0.5}]),
            ("history", {"step": 1}),
            ("controls", [1]),
            ("examples", [["a", "b"]]),
            ("start_seconds", [1]),
            ("emissions", {"emissions": "<b>"}),
            ("processor", "os; import os"),
            ("keeps_best", "yes"),
        ],
    )
    def test_numbers_and_lists_too(self, name, value):
        body = ModelCard(render(CardFacts.from_json(json.dumps({**FULL, name: value})))).text
        assert "<b>" not in body
        assert "import os" not in body

    @pytest.mark.parametrize(
        "text",
        [
            *("", "[]", "3", "{", "[" * 100_000, '{"name": "x"}'),
            '{"name": "x", "task": "text", "num_labels": 2.5}',
            '{"name": "x", "task": "video", "num_labels": 2}',
        ],
    )
    def test_what_are_no_facts_is_told(self, text, tmp_path, caplog):
        (tmp_path / "card_facts.json").write_text(text)
        assert read_facts(tmp_path) is None
        assert "card_facts.json is not used for the card" in caplog.text

    def test_facts_of_the_project_are_read_whole(self, caplog):
        files = list(Path(__file__).parent.parent.glob("model_cards/*/card_facts.json"))
        assert len(files) >= 3
        assert all(read_facts(file.parent) for file in files)
        assert not caplog.records


class TestWhatTheFirstLineSays:
    def test_accuracy_of_rows_that_chose_the_weights(self):
        facts = facts_named(["x"], keeps_best=True, measured_step=10)
        first = render(facts).partition("It reaches ")[2].partition("\n")[0]
        assert first == (
            "75.0 % accuracy on 400 evaluation rows of the split `x (5)`; the same rows chose these weights among "
            "those of the training."
        )
        assert "chose" not in render(facts_named(["x"])).partition("It reaches ")[2].partition("\n")[0]

    def test_test_rows_come_first(self):
        first = render(facts_named(["x"], keeps_best=True, test={"accuracy": 0.5})).partition("It reaches ")[2]
        assert first.startswith("50.0 % accuracy on test rows, by which nothing was chosen.")

    def test_without_a_measurement_it_claims_nothing(self):
        assert "It reaches" not in render(facts_named(["x"], history=[]))

    def test_counts_say_what_they_count(self):
        """136 "training rows" stood beside a label of 60: every pass over a row counts."""
        assert "rows of it seen in training, repeats counted" in render(facts_named(["x"]))
        assert "first to be confused" not in render(facts_named(["x"])), "nobody has measured what is confused"


AUDIO = ["hubert", "wav2vec2", "wavlm", "sew", "unispeech", "audio-spectrogram-transformer", "whisper"]


@pytest.mark.parametrize("name", [*AUDIO, "bert", "vit"])
def test_the_task_of_a_stock_class_is_that_of_its_mapping(name):
    """transformers calls HuBERT's classifier of sounds HubertForSequenceClassification: its card spoke of texts."""
    from transformers import AutoConfig

    kind = "audio" if name in AUDIO else {"bert": "text", "vit": "image"}[name]
    config = AutoConfig.for_model(name)
    stock = TASKS[kind].stock._model_mapping[type(config)]
    assert task_of_class(config, stock.__name__) == kind


USER_TEXT = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\r", exclude_categories=("Cs",)), max_size=80
).filter(lambda text: "user text" not in text and "digest of" not in text and text.strip("\n"))


class TestPeoplesText:
    @settings(max_examples=15)
    @given(st.dictionaries(st.sampled_from(["introduction", "limitations", "notes", "my own"]), USER_TEXT, min_size=1))
    def test_text_between_the_markers_survives_every_time(self, texts):
        facts = facts_named(["x"])
        text = render(facts)
        for name, own in texts.items():
            text = text.replace(slot(name), slot(name, own)) if slot(name) in text else f"{text}\n{slot(name, own)}\n"
        again = render(facts, text)
        for name, own in texts.items():
            assert slot(name, own) in again
        later = facts_named(["x"], history=[{"step": 20, "accuracy": 0.875}], measured_step=20)
        changed = render(later, render(facts, again))
        assert all(slot(name, own) in changed for name, own in texts.items())
        assert "87.5 %" in changed
        assert "75.0 %" not in changed, "the rest is new"

    def test_a_card_written_over_itself_is_the_same(self):
        text = render(facts_named(HOSTILE))
        assert render(facts_named(HOSTILE), text) == text

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: text.replace("<!-- user text ends: limitations -->\n", ""),
            lambda text: text.replace("<!-- user text begins: limitations -->\n", ""),
            lambda text: re.sub(r"<!-- user text \w+: limitations -->\n", "", text),
            lambda text: text.replace("text ends: limitations", "text ends: limits"),
            lambda text: text.replace("<!-- user text begins: limi", "<! user text begins: limi"),
            lambda text: text[: text.index("<!-- user text ends: limitations -->")],
            lambda text: text + slot("limitations", "A second time."),
            lambda text: text.replace("## Limits", "## Limits\n\nWritten outside."),
            lambda text: text.replace("library_name: transformers", "library_name: [transformers"),
        ],
    )
    def test_damage_loses_nothing(self, damage, tmp_path, caplog):
        facts = facts_named(["x"])
        own = "It was never tried on children.\n\n## My heading\n\nReally."
        damaged = damage(render(facts).replace(slot("limitations"), slot("limitations", own)))
        (tmp_path / "README.md").write_text(damaged, encoding="utf-8")
        with caplog.at_level(logging.WARNING, logger="hf_lwal"):
            write_card(tmp_path, facts)
        assert (tmp_path / "README.old-1.md").read_text(encoding="utf-8") == damaged
        assert "README.old-1.md" in caplog.text
        text = (tmp_path / "README.md").read_text(encoding="utf-8")
        if "user text" in damaged.partition("never tried")[0].rpartition("\n\n")[2] or "text ends: lim" in damaged:
            assert "never tried on children" in text, "one marker is enough to find the text again"
        write_card(tmp_path, facts)
        assert (tmp_path / "README.md").read_text(encoding="utf-8") == text
        assert not (tmp_path / "README.old-2.md").exists(), "a whole card is not kept aside"

    def test_one_marker_is_enough(self):
        facts = facts_named(["x"])
        whole = render(facts).replace(slot("limitations"), slot("limitations", "Mine.\n\n## Mine too"))
        for kind in ("begins", "ends"):
            text = render(facts, whole.replace(f"<!-- user text {kind}: limitations -->\n", ""))
            assert text == whole, f"without the line that {kind}"

    def test_a_card_from_elsewhere_becomes_a_note(self, tmp_path):
        (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n\nBy hand.\n", encoding="utf-8")
        text = write_card(tmp_path, facts_named(["x"]))
        assert slot("notes", "# Mine\n\nBy hand.") in text
        assert metadata(text)["license"] == "mit"
        assert not (tmp_path / "README.old-1.md").exists()

    def test_cards_that_machines_made_up_are_replaced(self, tmp_path):
        blank = ModelCard.from_template(ModelCardData(library_name="peft"))
        blank.text += "\n### Framework versions\n\n- PEFT 0.21.0"
        (tmp_path / "README.md").write_text(str(blank), encoding="utf-8")
        text = write_card(tmp_path, facts_named(["x"]))
        assert slot("notes") in text
        assert "More Information Needed" not in text

    def test_bytes_that_are_no_text_are_kept_aside(self, tmp_path):
        (tmp_path / "README.md").write_bytes("Müll".encode("latin-1"))
        write_card(tmp_path, facts_named(["x"]))
        assert (tmp_path / "README.old-1.md").read_bytes() == "Müll".encode("latin-1")

    def test_a_windows_editor_changes_nothing(self, tmp_path):
        whole = render(facts_named(["x"])).replace(slot("notes"), slot("notes", "Mine."))
        (tmp_path / "README.md").write_bytes(b"\xef\xbb\xbf" + whole.replace("\n", "\r\n").encode())
        assert write_card(tmp_path, facts_named(["x"], pictures=[])) == render(facts_named(["x"], pictures=[]), whole)
        assert not (tmp_path / "README.old-1.md").exists()


class TestSections:
    def test_without_a_control_the_card_says_so(self):
        assert "do not say what adaptive labels add" in render(facts_named(["x"], controls={}))

    def test_the_control_stands_beside_the_figures(self):
        text = render(facts_named(["x"], controls={"one-hot from class means": [(0, 0.5), (10, 0.72)]}))
        assert "the honest control): 72.0 % after step 10" in text
        assert "not trained" not in text

    def test_the_best_of_a_model_is_compared_with_the_best_of_its_control(self):
        """Against the control's last step, keeping the best checkpoint would look like an advantage of the labels."""
        controls = {"one-hot from class means": [(0, 0.5), (5, 0.8), (10, 0.72)]}
        tests = {"one-hot from class means": 0.79}
        text = render(facts_named(["x"], controls=controls, control_tests=tests, keeps_best=True))
        assert "the honest control): 80.0 % after step 5, its best; 79.0 % on the test rows" in text

    def test_the_saved_row_is_bold_and_never_thinned_out(self):
        history = [{"step": step, "accuracy": 0.5 + step / 1000} for step in range(0, 300, 3)]
        text = render(facts_named(["x"], history=history, measured_step=141, last_step=297, keeps_best=True))
        assert "| **141** | **64.1 %** |" in text
        assert "13 of 100 measurements. The row in bold is the saved one." in text
        assert "the best of 297" in text

    def test_what_little_is_known_is_enough(self):
        text = render(CardFacts("model", "image", 3))
        assert text.count("\n## ") == 4
        assert "None" not in text
        assert "\n\n\n" not in text

    def test_only_empty_lines_of_the_card_itself_are_run_together(self):
        """Sections that say nothing leave gaps; closing those must not close gaps in what people and models gave."""
        own = "First.\n\n\n\nSecond."
        facts = facts_named(
            ["x"], labels=None, method="lwr", method_citation=" ", command=own, modules=f"A(\n\n\n{own}\n)"
        )
        assert "\n\n\n" not in render(replace(facts, command=None, modules=None))
        text = render(facts, render(facts).replace(slot("notes"), slot("notes", own)))
        assert text.count(own) == 3
        assert slot("notes", own) in text

    def test_facts_travel_as_json(self):
        facts = facts_named(HOSTILE, pictures=[])
        again = CardFacts.from_json(facts.to_json().replace("{", '{"later_field": 1, ', 1))
        assert render(again) == render(facts)
        with pytest.raises(ValueError, match="not the facts"):
            CardFacts.from_json("[]")

    def test_measurements_after_the_best_was_loaded_belong_to_it(self):
        """``evaluate()`` after training logs under the last step, but measures the weights of the best one."""
        log = [
            {"eval_accuracy": 0.9, "step": 10, "epoch": 1},
            {"eval_accuracy": 0.8, "step": 20, "epoch": 2},
            {"train_runtime": 1.0, "step": 20},
            {"eval_accuracy": 0.91, "eval_runtime": 1.0, "step": 20},
        ]
        with_best = history_of(log, best_step=10)
        assert [(entry["step"], entry["accuracy"]) for entry in with_best] == [(10, 0.91), (20, 0.8)]
        assert [entry["accuracy"] for entry in history_of(log)] == [0.9, 0.91]

    def test_settings_name_no_paths_and_no_secrets(self, tmp_path):
        args = LwALTrainingArguments(
            str(tmp_path), learning_rate=1e-3, lwal_memory=10, hub_token="hf_secret", run_name="mine", max_steps=5
        )
        shown, changed = settings_of(args)
        assert sorted(changed) == ["learning_rate", "lwal_memory", "max_steps"]
        assert shown["seed"] == 42
        assert not {"output_dir", "hub_token", "run_name", "num_train_epochs"} & set(shown)
        assert str(tmp_path) not in str(shown)


NUM_LABELS = 10
LABELS = [f"intent {i}" if i >= 4 else HOSTILE[i] for i in range(NUM_LABELS)]


def build_trainer(tiny_config, output, **arguments):
    config = tiny_config("bert", id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)})
    model = AutoModelForLwALClassification.from_config(config)
    defaults = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no", "logging_steps": 2}
    defaults |= {"learning_rate": 1e-3, "report_to": "none", "disable_tqdm": True, "seed": 1}
    return LwALTrainer(
        model,
        LwALTrainingArguments(str(output), **{**defaults, **arguments}),
        train_dataset=separable_text(NUM_LABELS, 80),
        eval_dataset=separable_text(NUM_LABELS, 40, seed=1),
        processing_class=word_tokenizer(),
    )


@pytest.fixture(scope="module")
def trained(tiny_config, tmp_path_factory):
    """A trainer after a real training that keeps its best checkpoint, and its output folder with the card."""
    output = tmp_path_factory.mktemp("trained") / "tiny-intents"
    trainer = build_trainer(tiny_config, output, save_strategy="steps", save_steps=2, load_best_model_at_end=True)
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    trainer.create_model_card(
        model_name="Intents of toy sentences",
        dataset="toy sentences",
        license="apache-2.0",
        language="en",
        examples=["word1 key4 key4"],
        controls={"one-hot": [(2, 0.125), (6, 0.25)]},
        command="python train.py",
    )
    return trainer, output


class TestTrainer:
    def test_the_figures_are_those_of_the_log(self, trained):
        trainer, output = trained
        text = (output / "README.md").read_text(encoding="utf-8")
        log = {entry["step"]: entry for entry in trainer.state.log_history if "eval_accuracy" in entry}
        assert sorted(log) == [2, 4, 6]
        for step, entry in log.items():
            row = next(line for line in text.splitlines() if re.match(rf"\| \**{step}\** \|", line))
            assert f"{100 * entry['eval_accuracy']:.1f} %" in row
            assert f"{entry['eval_loss']:.4f}" in row
        best = log[trainer.state.best_global_step]["eval_accuracy"]
        assert ModelCard(text).data.eval_results[0].metric_value == pytest.approx(best, abs=1e-4)
        last = next(line for line in text.splitlines() if re.match(r"\| \**6\** \|", line))
        assert last.endswith("25.0 %** |" if trainer.state.best_global_step == 6 else "25.0 % |"), "the control"

    def test_the_label_table_is_the_models(self, trained):
        _, output = trained
        text = (output / "README.md").read_text(encoding="utf-8")
        table = json.loads((output / "label_table.json").read_text(encoding="utf-8"))
        for entry in table["labels"]:
            nearest = entry["nearest"][0]
            shown = [code(str(part)).replace("|", "\\|") for part in (entry["name"], nearest["name"])]
            begin = f"| {shown[0]} | {entry['count']} | {shown[1]} "
            assert begin in text, "computed by another function for the file"
            distance = text.partition(begin)[2].partition(",")[0]
            assert float(distance) == pytest.approx(nearest["distance"], abs=0.0051)  # each rounded from the whole

    def test_the_pictures_lie_beside_it(self, trained):
        _, output = trained
        text = (output / "README.md").read_text(encoding="utf-8")
        for name in ("dendrogram.png", "label_distances.png"):
            assert f"({name})" in text
            with Image.open(output / name) as picture:
                assert min(picture.size) > 100

    def test_the_snippets_run(self, trained, monkeypatch, capsys):
        _, output = trained
        monkeypatch.chdir(output.parent)
        text = (output / "README.md").read_text(encoding="utf-8")
        pipeline, model, folded = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        values = {}
        exec(pipeline.replace("\nclassify(", "\nanswer = classify("), values)
        label, score = re.search(r"^# (.*), (\d\.\d\d)$", pipeline, re.MULTILINE).groups()
        assert values["answer"][0]["label"] == json.loads(label)
        assert values["answer"][0]["score"] == pytest.approx(float(score), abs=0.006)
        exec(model, {})
        exec(folded, {})
        assert (output.parent / "tiny-intents-folded" / "config.json").exists()

    def test_what_was_said_once_holds_for_later_calls(self, trained, tmp_path):
        """``push_to_hub`` writes the card again, and knows nothing of licence, data set and control."""
        trainer, output = trained
        before = (output / "README.md").read_text(encoding="utf-8")
        trainer.create_model_card(model_name="tiny-intents")
        assert (output / "README.md").read_text(encoding="utf-8") == before

    def test_without_matplotlib_there_are_no_pictures(self, trained, monkeypatch, caplog):
        trainer, output = trained
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setattr(trainer.args, "output_dir", str(output.parent / "plain"))
        with caplog.at_level(logging.INFO, logger="hf_lwal.model_card"):
            trainer.create_model_card()
        assert sorted(path.name for path in (output.parent / "plain").iterdir()) == ["README.md", "card_facts.json"]
        assert "(dendrogram.png)" not in (output.parent / "plain" / "README.md").read_text(encoding="utf-8")
        assert len([record for record in caplog.records if "matplotlib" in record.getMessage()]) == 1

    def test_only_the_main_process_writes(self, trained, monkeypatch):
        trainer, output = trained
        monkeypatch.setattr(trainer.args, "output_dir", str(output.parent / "second"))
        monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
        trainer.create_model_card()
        assert not (output.parent / "second").exists()

    def test_text_written_on_the_hub_survives_a_push_from_a_new_folder(self, trained, monkeypatch, tmp_path):
        """People edit the card on the web; the next training starts from an empty folder and pushes its own."""
        trainer, output = trained
        on_the_hub = tmp_path / "downloaded.md"
        text = (output / "README.md").read_text(encoding="utf-8")
        on_the_hub.write_text(text.replace(slot("notes"), slot("notes", "Written on the web.")), encoding="utf-8")
        asked = []

        def download(repository, file, **place):
            asked.append((repository, file, place["revision"], place["token"]))
            return str(on_the_hub)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        monkeypatch.setattr(trainer, "hub_model_id", "me/tiny", raising=False)
        monkeypatch.setattr(trainer.args, "output_dir", str(tmp_path / "new"))
        for _ in range(2):
            trainer.create_model_card()
            assert slot("notes", "Written on the web.") in (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
        assert asked == 2 * [("me/tiny", name, None, None) for name in ("README.md", "card_facts.json")]

    def test_paths_of_the_machine_stay_on_it(self, trained):
        _, output = trained
        for name in ("README.md", "card_facts.json"):
            assert str(output.parent) not in (output / name).read_text(encoding="utf-8")

    def test_a_stock_model_has_a_card_without_label_table(self, tiny_config, tmp_path):
        trainer = build_trainer(tiny_config, tmp_path / "stock", label_method="label_smoothing", max_steps=2)
        trainer.train()
        trainer.create_model_card()
        text = (tmp_path / "stock" / "README.md").read_text(encoding="utf-8")
        assert "Szegedy" in text
        assert "lwal" not in metadata(text)["tags"]
        assert "hf-lwal" in metadata(text)["tags"]
        assert "label table" not in text.lower()
        assert not list((tmp_path / "stock").glob("*.png"))


class TestCommand:
    def card(self, folder, *more):
        with contextlib.redirect_stdout(None):
            return main(["card", str(folder), *more])

    @pytest.fixture
    def folder(self, trained, tmp_path):
        """A copy of the finished folder, without its checkpoints."""
        import shutil

        copy = tmp_path / "tiny-intents"
        shutil.copytree(trained[1], copy, ignore=shutil.ignore_patterns("checkpoint-*"))
        return copy

    def test_a_card_written_anew_is_the_same(self, folder):
        before = (folder / "README.md").read_text(encoding="utf-8")
        assert self.card(folder) == 0
        assert (folder / "README.md").read_text(encoding="utf-8") == before

    def test_it_tells_of_changed_labels_and_keeps_the_rest(self, folder):
        path = folder / "README.md"
        own = path.read_text(encoding="utf-8").replace(slot("notes"), slot("notes", "Mine."))
        path.write_text(own, encoding="utf-8")
        model = AutoModelForLwALClassification.from_pretrained(folder)
        model.config.id2label = {**model.config.id2label, 4: "renamed"}
        model.config.label2id = {name: index for index, name in model.config.id2label.items()}
        model.save_pretrained(folder)
        assert self.card(folder, "--license", "mit", "--dataset", "me/data", "--tags", "one", "two") == 0
        text = path.read_text(encoding="utf-8")
        assert "| `renamed` |" in text
        assert "`intent 4`" not in text.partition("## The labels")[2]
        assert slot("notes", "Mine.") in text
        assert "25.0 % after step 6" in text, "the control was in the facts"
        assert {"one", "two"} <= set(metadata(text)["tags"])
        assert (metadata(text)["license"], metadata(text)["datasets"]) == ("mit", ["me/data"])

    def test_a_checkpoint_alone_is_enough(self, trained, tmp_path):
        import shutil

        folder = tmp_path / "checkpoint-4"
        shutil.copytree(trained[1] / "checkpoint-4", folder)
        assert self.card(folder, "--name", "Step four") == 0
        text = (folder / "README.md").read_text(encoding="utf-8")
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        accuracy = [entry["eval_accuracy"] for entry in state["log_history"] if "eval_accuracy" in entry][-1]
        assert "# Step four" in text
        assert f"{100 * accuracy:.1f} %" in text
        assert "after step 4." in text

    def test_mistakes_are_one_sentence(self, tmp_path, capsys):
        assert main(["card", str(tmp_path / "nothing")]) == 2
        assert "There is no folder" in capsys.readouterr().err
        assert main(["card", str(tmp_path)]) == 2
        assert "has no config.json" in capsys.readouterr().err
        (tmp_path / "config.json").write_text("{}", encoding="utf-8")
        assert main(["card", str(tmp_path)]) == 2
        assert "could not be loaded" in capsys.readouterr().err


@pytest.mark.slow
def test_the_cards_of_the_project_can_be_made(tmp_path, monkeypatch, capsys):
    """benchmarks/model_cards.py runs as its opening lines say, and keeps what people wrote into the card before."""
    import runpy
    from pathlib import Path

    script = str(Path(__file__).parents[1] / "benchmarks" / "model_cards.py")
    data = load_embedded("fashion_mnist")
    for split, rows in data.items():  # fewer than there are, since a regression on them is one of the controls
        (tmp_path / "data" / "fashion_mnist").mkdir(parents=True, exist_ok=True)
        rows.select(range(300)).to_parquet(tmp_path / "data" / "fashion_mnist" / f"{split}.parquet")
    words = ["fashion_mnist", "--steps", "2", "--eval-samples", "20", "--data-root", str(tmp_path / "data")]
    words += ["--output", str(tmp_path / "cards"), "--model-dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [script, *words])
    runpy.run_path(script, run_name="__main__")
    card = tmp_path / "cards" / "fashion_mnist" / "README.md"
    text = card.read_text(encoding="utf-8")
    assert {path.name for path in card.parent.iterdir()} == {
        *("README.md", "card_facts.json", "curves.png", "dendrogram.png", "label_distances.png"),
        *(f"sample_{part}_{number}.png" for part in ("training", "evaluation") for number in (1, 2, 3)),
    }
    assert "python benchmarks/model_cards.py fashion_mnist --data-root DATA --steps 2" in text
    assert "Xiao, Rasul and Vollgraf" in text
    assert "`LP-FT` (one-hot labels from a logistic regression on the frozen features: the honest control)" in text
    assert "not trained" not in text, "a second control is not missed where the stronger one was trained"
    for picture in re.findall(r"\]\((\w+\.png)\)", text):
        assert (card.parent / picture).exists()
    with Image.open(card.parent / "label_distances.png") as picture:
        assert picture.mode == "P", "charts in the repository have 256 colours"
    card.write_text(text.replace(slot("notes"), slot("notes", "Mine.")), encoding="utf-8")
    runpy.run_path(script, run_name="__main__")
    trained = card.read_text(encoding="utf-8")
    assert slot("notes", "Mine.") in trained
    monkeypatch.setattr(sys, "argv", [script, *words, "--card-only"])
    runpy.run_path(script, run_name="__main__")
    assert card.read_text(encoding="utf-8") == trained, "written from the facts, without training, it is the same"
    capsys.readouterr()


def test_an_adapter_has_a_card_that_its_library_leaves_alone(tiny_config, tmp_path):
    """PEFT writes its own lines into README.md at every save, which must not look like text of people."""
    from peft import LoraConfig, get_peft_model

    output = tmp_path / "adapter"
    config = tiny_config("bert", id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)})
    model = AutoModelForLwALClassification.from_config(config)
    lora = LoraConfig(target_modules=["query", "value"], modules_to_save=model.peft_modules_to_save())
    trainer = LwALTrainer(
        get_peft_model(model, lora),
        LwALTrainingArguments(str(output), max_steps=2, save_strategy="no", report_to="none", disable_tqdm=True),
        train_dataset=separable_text(NUM_LABELS, 40),
        processing_class=word_tokenizer(),
    )
    trainer.train()
    card = output / "README.md"
    for _ in range(2):
        trainer.save_model()
        trainer.create_model_card(finetuned_from="me/base")
        card.write_text(card.read_text(encoding="utf-8").replace("tags:\n", "tags:\n- banking\n"), encoding="utf-8")
    trainer.save_model()
    trainer.create_model_card()
    text = card.read_text(encoding="utf-8")
    assert metadata(text)["tags"].count("banking") == 1
    assert (metadata(text)["library_name"], metadata(text)["base_model"]) == ("peft", "me/base")
    assert {"lora", "lwal"} <= set(metadata(text)["tags"])
    assert "PeftModel.from_pretrained(base, " in text
    assert "- PEFT " in text
    assert slot("notes") in text
    assert not list(output.glob("README.old-*.md"))
