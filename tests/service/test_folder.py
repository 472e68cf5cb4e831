"""The service's folder: private, held by one service, its logs read in parts."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from rltune.errors import StudyError
from rltune.service.folder import LOG_BYTES, ServiceFolder


def test_folder_and_token_are_for_their_user_alone(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path / "outputs")
    assert folder.read_token() is None
    with folder.hold():
        token = folder.make_token()
        assert folder.make_token() == folder.read_token() == token
        assert len(token) > 40
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert (folder.path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_a_token_file_that_a_crash_cut_is_made_anew(tmp_path: Path, content: str) -> None:
    folder = ServiceFolder(tmp_path)
    with folder.hold():
        file = folder.path / "token"
        file.write_text(content)
        token = folder.make_token()
        assert len(token) > 40
        assert file.read_text() == token == folder.make_token()
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_token_is_whole_or_absent_on_a_full_disk(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with folder.hold():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # Files can be made, and nothing can be written.
        try:
            with pytest.raises(OSError, match="large"):
                folder.make_token()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        assert folder.read_token() is None


def test_an_id_stays_with_its_folder_and_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    ids = []
    for path in (tmp_path / "first", tmp_path / "second"):
        with ServiceFolder(path).hold():
            ids.append(ServiceFolder(path).make_id())
    assert ids[0] != ids[1]
    (tmp_path / "first").rename(tmp_path / "moved")
    for path in (tmp_path / "moved", tmp_path / "link"):
        with ServiceFolder(path).hold():
            assert ServiceFolder(path).make_id() == ids[0]


def test_a_token_that_others_may_read_becomes_private(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with folder.hold():
        token = folder.make_token()
        (folder.path / "token").chmod(0o644)
        assert folder.make_token() == token
        assert (folder.path / "token").stat().st_mode & 0o777 == 0o600


def test_a_second_service_is_told_where_the_first_one_is(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with folder.hold():
        folder.write_address("http://127.0.0.1:1")
        with pytest.raises(StudyError) as error:
            ServiceFolder(tmp_path).check_free()
        assert error.value.key == "output_dir"
        assert "http://127.0.0.1:1" in error.value.what
    with folder.hold():
        folder.clear_address()
    assert folder.read_address() is None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="output_dir="), ServiceFolder(tmp_path / "file").hold():
        pass


def test_a_log_is_read_in_whole_lines_from_where_it_was_left(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    assert folder.read_log("none") == ("", 0)
    with folder.hold():
        lines = [f"line {number} ü\n" for number in range(9000)]
        folder.log_of("s").write_text("".join(lines))
        text, place = "", 0
        while (part := folder.read_log("s", place))[0]:
            assert part[0].endswith("\n")
            assert len(part[0].encode()) <= LOG_BYTES
            text, place = text + part[0], part[1]
        assert text == "".join(lines)
        assert folder.read_log("s", place) == ("", place)
        assert folder.read_log("s", place + 100) == ("", place), "a log that was cut"
        assert folder.read_log("s", -len(lines[-1].encode()))[0] == lines[-1]
