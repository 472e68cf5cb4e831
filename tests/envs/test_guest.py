"""Whatever the user's code does, one typed error says which call it was."""

import importlib.metadata

import pytest

from rltune.envs.guest import RUNNING, call_guest, find_root, import_guest
from rltune.errors import Cause, ConfigError, GuestError

pytestmark = pytest.mark.fast


def test_an_exception_names_the_call_and_the_users_line() -> None:
    with pytest.raises(GuestError) as caught, call_guest("reset"):
        raise ValueError("no licence")
    assert (caught.value.call, caught.value.cause) == ("reset", Cause.ENVIRONMENT)
    assert caught.value.place.startswith("test_guest.py, line ")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "code",
    [
        "import matplotlib.cm; matplotlib.cm.no_such_map",
        "import numpy; numpy.float",
        "from numpy import no_such_name",
        "import numpy.no_such_module",
        "import pandas; pandas.DataFrame().no_such_method()",
        "import gymnasium; gymnasium.make('CartPole-v1').no_such_method()",
    ],
)
def test_what_a_library_lacks_names_its_version(code: str) -> None:
    library = code.split()[1].split(".")[0].rstrip(";")
    with pytest.raises(GuestError) as caught, call_guest("make"):
        exec(compile(code, "walk.py", "exec"))
    version = importlib.metadata.version(library)
    assert f"{library} {version}" in caught.value.problem
    assert f"'{library}<{'.'.join(version.split('.')[:2])}'" in caught.value.fix
    assert "correct walk.py, line 1" in caught.value.fix


def test_the_package_that_uses_it_is_named_to_be_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("import numpy; numpy.float", "/v/lib/site-packages/walking/walk.py", "exec")
    distributions = {"walking": ["walking-envs"], "numpy": ["numpy"]}
    monkeypatch.setattr("rltune.envs.guest._list_distributions", lambda: distributions)
    with pytest.raises(GuestError) as caught, call_guest("make"):
        exec(code)
    assert "pip install --upgrade walking-envs" in caught.value.fix


@pytest.mark.parametrize("code", ["None.reset", "import no_such_module", "import math; math.no_such_name", "open.x"])
def test_an_own_mistake_blames_no_library(code: str) -> None:
    with pytest.raises(GuestError) as caught, call_guest("make"):
        exec(compile(code, "walk.py", "exec"))
    assert caught.value.fix == "correct it"


def test_a_module_that_cannot_be_loaded_is_not_outdated() -> None:
    with pytest.raises(GuestError) as caught, call_guest("make"):
        exec(compile("raise ImportError('libGL.so.1: cannot open', name='numpy._drawing')", "walk.py", "exec"))
    assert caught.value.fix == "correct it"


def test_an_exit_is_an_error_like_others() -> None:
    with pytest.raises(GuestError) as caught, call_guest("step 3"):
        raise SystemExit(0)
    assert caught.value.call == "step 3"


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    @property
    def cause(self) -> object:
        raise SystemExit


@pytest.mark.parametrize("error", [SilentError(), ValueError("x" * 1_000_000), ValueError("\udcff \x1b[31mred\x07")])
def test_no_text_of_an_exception_breaks_its_error(error: Exception) -> None:
    with pytest.raises(GuestError) as caught, call_guest("reset"):
        raise error
    assert caught.value.call == "reset"
    assert len(str(caught.value)) < 2000
    assert str(caught.value).replace("\n", "").isprintable()


def test_our_own_errors_pass_the_door() -> None:
    with pytest.raises(ConfigError), call_guest("reset"):
        raise ConfigError("env.id", "x", "is wrong")


def test_interrupts_pass_the_door() -> None:
    with pytest.raises(KeyboardInterrupt), call_guest("reset"):
        raise KeyboardInterrupt


def test_a_signal_to_a_worker_passes_the_door() -> None:
    end = compile("raise SystemExit(1)", "python/ray/_raylet.pyx", "exec")
    with pytest.raises(SystemExit), call_guest("reset"):
        exec(end)


def test_what_fails_while_a_fault_is_handled_hides_no_fault() -> None:
    fault, later = GuestError("step 3 fails"), TypeError("RLlib cannot copy the exception")
    later.__context__ = fault
    assert find_root(later) is fault


def test_another_thread_can_read_the_running_call() -> None:
    begun: list[str] = []
    RUNNING.on_begin = begun.append
    count = RUNNING.count
    with call_guest("make of copy 1"):
        with call_guest("import of walk"):
            assert RUNNING.name == "import of walk"
        assert RUNNING.name == "make of copy 1"
    RUNNING.on_begin = lambda name: None
    assert (RUNNING.name, RUNNING.count - count) == ("", 2)
    assert begun == ["make of copy 1", "import of walk"]


def test_no_cause_of_a_fault_leads_back_to_itself() -> None:
    inner = GuestError("reward is None")
    outer = RuntimeError(RuntimeError(inner))
    outer.__cause__ = inner
    with pytest.raises(GuestError) as caught, call_guest("step 3 of copy 1"):
        raise outer
    assert caught.value is inner
    assert inner.call == "step 3 of copy 1"
    assert inner.__cause__ is None


def test_a_module_that_is_missing_says_where_to_put_it() -> None:
    with pytest.raises(GuestError) as caught:
        import_guest("no_such_shop.envs")
    assert caught.value.fix.startswith("put no_such_shop.py into this folder")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
