"""Pictures of any mode are read alike in training and prediction, from folders and from tables of paths."""

import io
import sys

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image

from hf_lwal.bench.rows import _array
from hf_lwal.cli.train_data import load_rows, prepare_rows
from hf_lwal.errors import CommandError
from hf_lwal.modeling.pictures import read_picture, rgb

RAMP = np.arange(16, dtype=np.float64).reshape(4, 4) / 15.0
GREY = np.rint(255 * RAMP).astype(np.uint8)


def save(path, colour="red", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), colour).save(path, **options)
    return path


@pytest.mark.parametrize(
    "values",
    [
        np.rint(65535 * RAMP).astype(np.uint16),
        np.rint(65535 * RAMP).astype(np.int32),
        RAMP.astype(np.float32),
        (255 * RAMP).astype(np.float32),
        (65535 * RAMP).astype(np.float32),
        (2 * RAMP - 1).astype(np.float32),
        np.rint((2.0**31 - 1) * RAMP).astype(np.int32),
    ],
    ids=["16 bit", "32-bit integers", "floats to 1", "floats to 255", "floats to 65535", "negative", "whole 31 bits"],
)
def test_deep_pictures_are_scaled(values):
    """``convert("RGB")`` clips at 255: X-rays, depth and microscopy came out white."""
    read = np.asarray(rgb(Image.fromarray(values)))
    assert read.shape == (4, 4, 3)
    assert np.ptp(read.astype(int), axis=2).max() == 0
    top = 127 if values.max() > 2**30 else 255  # 31 of 32 bits
    assert np.abs(read[..., 0] - top * RAMP).max() <= 1.0


@pytest.mark.parametrize("kind", ["png", "tiff", "big-endian tiff"])
def test_files_of_16_bits_are_scaled(kind, tmp_path):
    values = np.rint(65535 * RAMP).astype(np.uint16)
    path = tmp_path / f"deep.{kind.split()[-1]}"
    if kind.startswith("big"):
        Image.frombytes("I;16B", (4, 4), values.astype(">u2").tobytes()).save(path)
    else:
        Image.fromarray(values).save(path)
    with Image.open(path) as stored:
        assert stored.mode.startswith("I;16")
        assert _array(stored, 3).shape == (3, 4, 4)
    assert np.abs(np.asarray(read_picture(path))[..., 0].astype(float) - 255 * RAMP).max() <= 1.0


def test_transparent_parts_are_white():
    """Under them lies black in most files: a black drawing vanished."""
    drawing = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    drawing.putpixel((1, 1), (0, 0, 0, 255))
    expected = np.full((4, 4, 3), 255)
    expected[1, 1] = 0
    palette = drawing.quantize()
    file = io.BytesIO()
    palette.save(file, format="PNG")
    with Image.open(file) as stored:
        for picture in (drawing, drawing.convert("LA"), stored):
            assert (np.asarray(rgb(picture)) == expected).all(), picture.mode


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "RGB", "YCbCr", "LA", "RGBA"])
def test_plain_modes_keep_their_greys(mode):
    picture = Image.fromarray(GREY)
    black_white = picture.point(lambda value: 255 * (value > 127))
    made = black_white.convert("1") if mode == "1" else picture.convert("RGB" if mode != "LA" else "L")
    made = made.quantize() if mode == "P" else made.convert(mode)
    expected = np.asarray(black_white if mode == "1" else picture).astype(float)
    assert np.abs(np.asarray(rgb(made)).mean(axis=2) - expected).max() <= 3.0


def test_cameras_that_were_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture = Image.new("RGB", (8, 4), "blue")
    picture.save(tmp_path / "turned.jpg", exif=exif)
    assert read_picture(tmp_path / "turned.jpg").size == (4, 8)
    assert read_picture({"bytes": (tmp_path / "turned.jpg").read_bytes(), "path": None}).size == (4, 8)


# -- tables of paths --------------------------------------------------------------------------------------------------


def listed(folder, kind, *, absolute=False):
    """A table, in its own folder, of pictures beside it."""
    paths = [save(folder / "pictures" / f"{number}.png", "red" if number % 2 else "blue") for number in range(12)]
    names = [str(path if absolute else path.relative_to(folder)) for path in paths]
    rows = Dataset.from_dict({"image": names, "label": ["cat" if number % 2 else "dog" for number in range(12)]})
    path = folder / f"list.{kind}"
    {"csv": rows.to_csv, "jsonl": rows.to_json, "parquet": rows.to_parquet}[kind](path)
    return path


@pytest.mark.parametrize(("kind", "absolute"), [("csv", False), ("jsonl", True), ("parquet", False)])
def test_a_column_of_paths_is_a_column_of_pictures(kind, absolute, tmp_path, monkeypatch):
    """A text model learnt the names of the files by heart, and reported 100 %."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = load_rows(str(listed(tmp_path / "data", kind, absolute=absolute)))
    assert (rows.columns.kind, rows.columns.input) == ("image", "image")
    first = rows.train[0]
    assert first["image"].getpixel((0, 0)) == ((255, 0, 0) if rows.names[first["label"]] == "cat" else (0, 0, 255))


def test_paths_are_relative_to_the_current_folder_too(tmp_path, monkeypatch):
    listed(tmp_path, "csv")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "list.csv").rename(tmp_path / "elsewhere" / "list.csv")
    monkeypatch.chdir(tmp_path)
    assert load_rows("elsewhere/list.csv").columns.kind == "image"


def test_pictures_that_are_nowhere_are_not_taken_for_texts(tmp_path):
    path = listed(tmp_path / "data", "csv")
    path.rename(tmp_path / "moved.csv")
    with pytest.raises(CommandError, match=r"names of pictures, such as 'pictures/0.png', but there are no"):
        load_rows(str(tmp_path / "moved.csv"))
    assert load_rows(str(tmp_path / "moved.csv"), text_column="image").columns.kind == "text", (
        "who asks for it gets it"
    )


def test_a_table_in_the_folder_of_its_pictures(tmp_path):
    listed(tmp_path / "data", "csv")
    assert load_rows(str(tmp_path / "data")).names == ["cat", "dog"]
    (tmp_path / "data" / "list.csv").unlink()
    rows = "".join(f"{number}.png,{'odd' if number % 2 else 'even'}\n" for number in range(12))
    (tmp_path / "data" / "pictures" / "metadata.csv").write_text("file_name,label\n" + rows, "utf-8")
    loaded = load_rows(str(tmp_path / "data"))
    assert (loaded.names, loaded.columns.kind) == (["even", "odd"], "image")


def test_one_table_describes_the_pictures_of_every_split(tmp_path):
    """Beside folders called train and test it was not looked at, and no picture had a label."""
    names = [f"{split}/{number}.png" for split, amount in (("train", 8), ("test", 2)) for number in range(amount)]
    for name in names:
        save(tmp_path / name)
    lines = [f"{name},{'odd' if int(name[-5]) % 2 else 'even'}" for name in names]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,label", *lines]), "utf-8")
    rows = load_rows(str(tmp_path))
    assert len(rows.train) + len(rows.validation) == 8
    assert rows.test["label"][:] == [0, 1]


# -- folders ----------------------------------------------------------------------------------------------------------


def labelled(folder, labels=("cat", "dog"), amount=4):
    for label in labels:
        for number in range(amount):
            save(folder / label / f"{number}.png", "red" if label == labels[0] else "blue")


@pytest.mark.parametrize("test", ["1.png", "unknown/1.png"])
def test_a_test_folder_without_labels_leaves_the_others_theirs(test, tmp_path):
    """Unlabelled pictures to predict on made the training folder lose its labels."""
    labelled(tmp_path / "shots" / "train")
    save(tmp_path / "shots" / "test" / test)
    rows = load_rows(str(tmp_path / "shots"))
    assert rows.names == ["cat", "dog"]
    assert rows.notes[0] == "split 'test' is left out: it has no column 'label'"


def test_a_test_folder_of_one_label_keeps_it(tmp_path):
    labelled(tmp_path / "train")
    labelled(tmp_path / "test", ["dog"], 2)
    assert load_rows(str(tmp_path)).test["label"][:] == [1, 1]


def test_pictures_at_unlike_depths(tmp_path):
    """One picture too deep, or beside the folders, and no picture had a label."""
    labelled(tmp_path / "train")
    save(tmp_path / "train" / "cat" / "more" / "deep.png")
    save(tmp_path / "train" / "stray.png")
    save(tmp_path / "train" / ".hidden" / "x.png")
    save(tmp_path / "train" / "cat" / "._0.png")
    rows = load_rows(str(tmp_path))
    assert rows.names == ["cat", "dog"]
    assert len(rows.train) + len(rows.validation) == 9
    assert any("unlike depths" in note for note in rows.notes)
    assert any("1 row of split 'train' without a label is left out: row " in note for note in rows.notes)


def broken(folder, kind):
    """A file that is called a picture and is none."""
    whole = save(folder / "whole.jpg").read_bytes()
    (folder / "whole.jpg").unlink()
    content = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "html": b"<html>not found</html>",
        "noise": whole[:9] * 9,
    }
    (folder / "bad.jpg").write_bytes(content[kind])


@pytest.mark.parametrize("kind", ["cut", "empty", "html", "noise"])
def test_an_unreadable_picture_is_left_out_before_training(kind, tmp_path):
    """It ended the training in the middle of an epoch, without its name."""
    labelled(tmp_path / "data")
    broken(tmp_path / "data" / "cat", kind)
    rows = load_rows(str(tmp_path / "data"))
    assert len(rows.train) + len(rows.validation) == 8
    assert "1 picture of split 'train' cannot be read and is left out: " in rows.notes[0]
    assert "bad.jpg" in rows.notes[0]


def test_where_no_picture_can_be_read_the_cause_is_shown(tmp_path, monkeypatch):
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.heic").write_bytes(b"ftypheic")
    with pytest.raises(CommandError, match=r"None of the 2 pictures of split 'train' can be read: .*1.heic"):
        load_rows(str(tmp_path))
    monkeypatch.setattr("hf_lwal.data.media.find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r'pip install "hf-lwal\[vision\]"'):
        load_rows(str(tmp_path))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="vision"):
        read_picture(tmp_path / "a" / "1.heic")


def test_training_reads_what_prediction_reads(tmp_path):
    """The two doors scaled pictures each in its way."""

    class Processor:
        def __call__(self, images, return_tensors):
            return {"pixel_values": [np.asarray(image) for image in images]}

    for label, top in (("dark", 20000), ("light", 65535)):
        for number in range(2):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.fromarray(np.rint(top * RAMP).astype(np.uint16)).save(tmp_path / label / f"{number}.png")
    rows = load_rows(str(tmp_path))
    seen = prepare_rows(rows.train, rows, Processor(), None)[0]
    path = tmp_path / rows.names[seen["label"]] / "0.png"
    assert (np.asarray(seen["pixel_values"]) == np.asarray(read_picture(path))).all()
