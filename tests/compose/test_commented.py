"""What the files of conf/ say of their keys."""

from __future__ import annotations

from rltune.compose.commented import Setting, read_keys

TEXT = """\
# the file's heading
first: 1 # one
section:
  # above
  second: [a, # inside
    b]
  third: 'x # y'
fourth:
  - 1
  - 2
"""


def test_a_comment_behind_or_above_a_key_is_its_meaning(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(TEXT)
    assert read_keys(file) == [
        Setting("first", "1", "one"), Setting("section.second", "[a, b]", "above"),
        Setting("section.third", "'x # y'", ""), Setting("fourth", "- 1 - 2", ""),
    ]  # fmt: skip
    assert read_keys(file, "certify.")[0].key == "certify.first"
