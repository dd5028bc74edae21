"""What every test may use: types checked at run time, a seeded key, the folder of real ratings,
short hypothesis runs.

jax keeps its single CPU device here; a test that needs several starts its own process.
"""

import contextlib
import gc
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

from tests.cases import CHECKOUT, typechecking
from tests.cases.compilation import compile_quickly

# A shell's background job ignores Ctrl-C and so would all that it starts, also the commands that
# tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Traced programs are many small objects that stay: the collector would go over them time and again.
gc.set_threshold(50_000)

# Before any of our modules is imported: shapes in signatures are checked in tests, and only there.
# `make test` does so in every module. It is a third of the time of tracing, and `make test-all`
# leaves it out of the tests that take longest.
if os.environ.get("DPMF_TYPES") != "unchecked":
    install_import_hook(
        ["accounting", "audits", "dpmf_jax", "experiments"], f"{typechecking.__name__}.check"
    )

# Programs that tests start find this checkout, whatever folder they start in.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Compiling is most of the work. Workers, and the programs that tests start, share what is compiled,
# and so does the next run; `make clean` forgets it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CHECKOUT / ".pytest_cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

SHARED_DATA = CHECKOUT.parent / "shared" / "data"

hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.register_profile(
    "short",
    deadline=None,  # the first example compiles
    max_examples=25,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets; tests that take this fixture carry the marker ``data``."""
    named = os.environ.get("DPMF_DATA")
    folder = Path(named).expanduser() if named else SHARED_DATA
    if folder.is_dir():
        return folder
    why = f"DPMF_DATA names {folder}, which is no folder" if named else "DPMF_DATA is not set"
    pytest.skip(
        f"no real ratings: {why}; get MovieLens 100K and 1M from GroupLens, "
        "unpack them as ml-100k/ and ml-1m/ in one folder, and set DPMF_DATA to that folder"
    )


@pytest.fixture(autouse=True, scope="session")
def ledger(tmp_path_factory):
    """Releases of tests are nobody's: they go into a ledger of this run, and so do those of
    subprocesses.
    """
    os.environ["DPMF_LEDGER"] = str(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


@pytest.fixture(autouse=True, scope="session")
def loaded():
    """jax is there before any command of this process, which otherwise might choose a compiler for
    all tests to come (`experiments.audit.compilation`).
    """
    import jax

    return jax


@pytest.fixture
def books(tmp_path, monkeypatch):
    """An empty folder, and a ledger of this test alone."""
    from tests.cases.ledger import LEDGER

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPMF_LEDGER", str(tmp_path / LEDGER))


@pytest.fixture(autouse=True, scope="module")
def programs():
    """Each file's compiled programs go when it is done: thousands of them exceed the mappings that
    a process may have, and XLA then aborts it.
    """
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="module")
def quick_compilation():
    """For a file whose time goes into compiling small programs, and whose tolerances hold whatever
    the compiler does.

    `test_spread`, `test_sweep` and the tests of the layouts and of processes have every mechanism
    as it ships. A thorough run has it so in all files.
    """
    compile_quickly(os.environ.get("HYPOTHESIS_PROFILE") != "thorough")
    yield
    compile_quickly(False)


@contextlib.contextmanager
def _compiling(quickly: bool):
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.clear_caches()  # a program that is there would serve, however it was compiled
    compile_quickly(quickly)
    yield
    jax.clear_caches()
    compile_quickly(before)


@pytest.fixture
def optimized():
    """For a test that computes for long, in a file that compiles quickly."""
    with _compiling(quickly=False):
        yield


@pytest.fixture
def unoptimized():
    """For a test of large programs, in a file that has others as they ship."""
    with _compiling(quickly=os.environ.get("HYPOTHESIS_PROFILE") != "thorough"):
        yield


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The test runs in a folder of its own, with `mine.csv` and catalogues (`tests.cases.fit`)."""
    from tests.cases import fit

    fit.enter(tmp_path, monkeypatch)


@pytest.fixture
def key():
    """A new-style key, the same in every test; split it rather than use it twice."""
    import jax

    return jax.random.key(20_240_001)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for ``data_dir`` is a ``data`` test, marked or not.

    Of a ``one_case`` test all cases but the first take ``seconds``.
    """
    begun = set()
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.data)
        if item.get_closest_marker("one_case"):
            name = item.nodeid.partition("[")[0]
            if name in begun:
                item.add_marker(pytest.mark.seconds)
            begun.add(name)
