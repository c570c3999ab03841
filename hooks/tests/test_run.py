"""`python -m freeride.run SCRIPT` against `python SCRIPT`: all that a script can see of its process, with every Python from 3.9 on that is here."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest

from support import WATCHDOG, environment

# Prints what it finds, as JSON, for two processes to be compared. What has freeride in its name is the hook's own, and so is a function at exit.
LOOK = """
import sys
modules = sorted(name for name in sys.modules if not name.startswith('freeride') and name != 'atexit')
finders = [str(finder) for finder in sys.meta_path if '_BeforeTorch' not in str(finder)]
opened = open('/dev/null').fileno()
import atexit, json, os, signal, threading, types
with open('/proc/self/stat') as file: parent = file.read().split()[3]
print(json.dumps({
    'argv': sys.argv, 'path': sys.path, 'flags': str(sys.flags), 'orig_argv': getattr(sys, 'orig_argv', None),
    'warnoptions': sys.warnoptions, 'xoptions': sys._xoptions, 'executable': sys.executable, 'prefix': sys.prefix,
    'modules': modules, 'finders': finders, 'opened': opened, 'importers': sorted(one for one in sys.path_importer_cache if not one.endswith('/freeride')),
    'environment': [[k, v] for k, v in os.environ.items() if not k.startswith('FREERIDE_')],
    'main': {k: str(v) for k, v in vars(sys.modules['__main__']).items() if isinstance(v, (str, type(None)))},
    'is_main': sys.modules['__main__'].__dict__ is globals(), 'spec': str(__spec__), 'loader': type(__loader__).__name__,
    'signals': [str(signal.getsignal(s)) for s in sorted(signal.valid_signals())], 'cwd': os.getcwd(),
    'mask': sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), 'threads': threading.active_count(), 'parent': parent,
    'descriptors': sorted(int(one) for one in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + one) and
                          not os.readlink('/proc/self/fd/' + one).startswith('/memfd:freeride')),
    'encodings': [f'{s.encoding} {s.errors} {s.line_buffering}' for s in (sys.stdin, sys.stdout, sys.stderr)],
    'filesystem': [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()], 'cached': str(globals().get('__cached__')),
}))
"""

CHILDREN = """
import multiprocessing, os, sys
from pathlib import Path

class Actor:
    def look(self, out):
        main = sys.modules['__main__']
        out.put([sys.argv, sys.path, main.__name__, getattr(main, '__file__', None), str(main.__spec__), __name__,
                 sorted(k for k in os.environ if not k.startswith('FREERIDE_')), [type(f).__name__ for f in sys.meta_path][1:]])

if __name__ == '__main__':
    for how in ('fork', 'spawn', 'forkserver'):
        context = multiprocessing.get_context(how)
        out = context.Queue()
        process = context.Process(target=Actor().look, args=(out,))
        process.start()
        found = out.get()
        if found[-1][0] == 'type' and len(found[-1]) > 3: found[-1].pop(0)
        print(how, found[:-1])
        process.join()
        print(process.exitcode)
    sys.stdout.flush()
    if os.fork() == 0: sys.exit(3)
    print(os.wait()[1])
"""

SCRIPTS = {
    "exits": "import sys\nsys.exit(7)\n",
    "raises": "def inner():\n    raise KeyError('mine')\ninner()\n",
    "wrong": "this is no Python\n",
    "says": "import sys\nsys.exit('what went wrong')\n",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "interrupted": "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)\n",
    "left": "import os\nos._exit(5)\n",
    "pickles": "import atexit, pickle\nclass Mine: pass\natexit.register(lambda: print(pickle.dumps(Mine())))\n",
    "moves": "import inspect, os\nfrom pathlib import Path\ndef here(): pass\nprint(Path(__file__).parents[1])\nos.chdir('/')\n"
    "print(len(open(__file__).read()), inspect.getsource(here))\n",
    "starts": "import os, subprocess, sys\n"
    "look = 'import os, sys; print(sys.path, sorted(k for k in os.environ if k[:9] != \"FREERIDE_\"))'\n"
    "subprocess.run([sys.executable, '-c', look])\n",
    "children": CHILDREN,
}


def pythons():
    found = {}
    for minor in range(9, 15):
        for path in [
            shutil.which(f"python3.{minor}"),
            *glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python")),
        ]:
            try:
                code = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
                words = subprocess.check_output([path, "-c", code], text=True, stderr=subprocess.DEVNULL).split()
            except (OSError, TypeError, subprocess.CalledProcessError):
                continue
            found.setdefault(words[1], words[0])
    found["%d.%d" % sys.version_info[:2]] = sys.executable
    return [pytest.param(path, id=version) for version, path in sorted(found.items())]


every_python = pytest.mark.parametrize("interpreter", pythons())


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    """Of scripts: look.py with a sibling that it imports, a link to it from elsewhere, a package, a folder and an archive to be run."""
    scripts = tmp_path / "scripts"
    package = scripts / "package"
    package.mkdir(parents=True)
    (scripts / "sibling.py").write_text("")
    (scripts / "look.py").write_text("import sibling\n" + LOOK)
    (tmp_path / "links").mkdir()
    (tmp_path / "links/look.py").symlink_to(scripts / "look.py")
    for folder in (package, tmp_path / "run_me"):
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("")
        (folder / "__main__.py").write_text(LOOK)
    with zipfile.ZipFile(tmp_path / "look.zip", "w") as archive:
        archive.writestr("__main__.py", LOOK)
    for name, text in SCRIPTS.items():
        (scripts / f"{name}.py").write_text(text)
    return tmp_path


def run(words, folder, **env):
    given = environment(folder / "run", **env)
    given = {name: value for name, value in given.items() if value != "unset"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    # The line about a script that has no ranks; and what differs from one run to the next.
    stderr = re.sub(r"^freeride: nothing was hooked: .*\n", "", done.stderr, flags=re.MULTILINE)
    return done.returncode, re.sub("0x[0-9a-f]+", "0x", done.stdout), stderr


def both(words, folder, options=(), interpreter=sys.executable, **env):
    """(plain, through freeride.run). `words`: the script and its arguments."""
    plain = run([interpreter, *options, *words], folder, **env)
    through = run([interpreter, *options, "-m", "freeride.run", *words], folder, **env)
    return plain, through


WAYS = {
    "script": ["scripts/look.py", "a", "--b", ""],
    "link": ["links/look.py", "-m", "x"],
    "folder": ["run_me"],
    "archive": ["look.zip", "a"],
    "missing": ["nowhere.py"],
    "no module": ["-m", "freeride_nowhere"],
    "module": ["-m", "run_me", "a"],
    "no name": ["-m"],
}
OPTIONS = {
    "options": ["-OO", "-uX", "dev", "-W", "ignore::UserWarning", "-Xutf8=1", "--check-hash-based-pycs", "never"],
    "bundled": ["-Bq"],
}


def assert_same(plain, through):
    assert through[0] == plain[0], through
    if plain[1].startswith("{"):
        assert json.loads(through[1]) == json.loads(plain[1])
    assert through[1:] == plain[1:]


@every_python
@pytest.mark.parametrize("way", WAYS)
def test_a_script_sees_what_it_sees_without_us(folder, interpreter, way):
    plain, through = both(WAYS[way], folder, interpreter=interpreter)
    assert_same(plain, through)
    assert (plain[0] == 0) == plain[1].startswith("{")


@every_python
@pytest.mark.parametrize("options", OPTIONS)
def test_pythons_own_options_are_the_scripts(folder, interpreter, options):
    assert_same(*both(WAYS["script"], folder, OPTIONS[options], interpreter))


@every_python
def test_a_safe_path_stays_safe(folder, interpreter):
    plain, through = both(["run_me"], folder, interpreter=interpreter, PYTHONSAFEPATH="1")
    assert plain[0] == 0
    assert_same(plain, through)
    shutil.copy(folder / "run_me/__main__.py", folder / "alone.py")
    assert_same(*both(["alone.py"], folder, interpreter=interpreter, PYTHONSAFEPATH="1"))


@every_python
def test_a_locale_that_python_changes_is_as_it_was(folder, interpreter):
    """Python writes LC_CTYPE into its environment in the C locale, and then another Python is started otherwise."""
    unset = dict.fromkeys(("LANG", "LC_ALL", "LC_CTYPE"), "unset")
    plain, through = both(WAYS["script"], folder, interpreter=interpreter, **unset)
    assert_same(plain, through)


@every_python
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_ends_and_starts_others_as_without_us(folder, interpreter, script):
    plain, through = both([f"scripts/{script}.py"], folder, interpreter=interpreter)
    assert_same(plain, through)


def test_what_a_profiler_injects_stays(folder):
    """Nsight's tools do it by the environment, which has to outlive the start of another Python."""
    injected = {"LD_PRELOAD": "libutil.so.1", "CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"}
    plain, through = both(WAYS["script"], folder, **injected)
    assert_same(plain, through)
    assert set(injected.items()) <= {tuple(pair) for pair in json.loads(through[1])["environment"]}


@pytest.mark.parametrize("path", ["unset", "", "scripts:links"])
def test_the_path_of_the_environment_is_as_it_was(folder, path):
    """Where the package is found by the working folder alone."""
    shutil.copytree(os.path.dirname(os.path.dirname(__file__)) + "/python/freeride", folder / "freeride")
    plain, through = both(["scripts/look.py"], folder, PYTHONPATH=path)
    assert plain[0] == 0
    assert_same(plain, through)
    # Nor is anything of ours on the script's path; still it may use the package.
    uses = folder / "links/uses.py"
    uses.write_text("import freeride, sys\nprint(freeride.state(), [one for one in sys.path if 'freeride' in one])\n")
    assert run([sys.executable, "-m", "freeride.run", uses], folder, PYTHONPATH=path)[:2] == (0, "off []\n")


@every_python
def test_a_sitecustomize_of_somebody_else_is_run_once(folder, interpreter):
    (folder / "scripts/sitecustomize.py").write_text("print('theirs', __name__, __file__)\n")
    env = {"PYTHONPATH": f"{folder}/scripts:{environment(folder)['PYTHONPATH']}"}
    script = folder / "links/asks.py"
    script.write_text("import sitecustomize, sys\nprint(sitecustomize.__file__, sys.path)\n")
    plain, through = both([script], folder, interpreter=interpreter, **env)
    assert plain[1].count("theirs") == 1
    assert through[1].count("theirs") == 2  # of the process that looks for the script, which then becomes the script's
    assert through[1].split("\n", 1)[1] == plain[1]


def test_switched_off_it_is_python(folder):
    """Also the variables of the hook are what they were."""
    (folder / "env.py").write_text(
        "import os, sys\nprint(dict(os.environ), sys.path, sorted(sys.modules), sys.meta_path)\n"
    )
    for options in ([], ["-E"], ["-I"]):
        if options:  # they keep the package away
            shutil.copytree(
                os.path.dirname(os.path.dirname(__file__)) + "/python/freeride", folder / "freeride", dirs_exist_ok=True
            )
        plain = run([sys.executable, *options, "env.py"], folder, FREERIDE_HOOK="0")
        through = run([sys.executable, *options, "-m", "freeride.run", "env.py"], folder, FREERIDE_HOOK="0")
        if options != ["-I"]:  # which finds no package here
            assert through[1] == plain[1]


def test_in_a_process_of_somebody_elses_the_script_stays_main(folder):
    """A debugger or mpi4py runs freeride.run in its own process: that is not left."""
    runner = folder / "runner.py"
    runner.write_text(
        "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_module('freeride.run', run_name='__main__')\n"
    )
    for script in ("pickles", "moves", "exits", "left"):
        plain = run([sys.executable, f"scripts/{script}.py"], folder)
        through = run([sys.executable, runner, "freeride.run", f"scripts/{script}.py"], folder)
        assert through[:2] == plain[:2]
    by_link = run([sys.executable, runner, "freeride.run", "links/look.py"], folder)
    assert by_link[0] == 0 and json.loads(by_link[1])["argv"] == ["links/look.py"]
    by_option = run([sys.executable, "-E", "-c", f"import sys; sys.path.insert(0, {environment(folder)['PYTHONPATH']!r}); "
                     "sys.argv[:] = ['', 'scripts/look.py']; import freeride.run; freeride.run.main()"], folder)  # fmt: skip
    assert by_option[0] == 0, by_option


def test_what_a_launcher_puts_first_is_the_scripts(folder):
    for words in (["--local_rank=3", "scripts/look.py", "a"], ["--local-rank=3", "--x=1", "scripts/look.py", "a"]):
        launched = run([sys.executable, "-m", "freeride.run", *words], folder)
        assert json.loads(launched[1])["argv"] == ["scripts/look.py", *words[:-2], "a"]
    module = run([sys.executable, "-m", "freeride.run", "--local_rank=3", "-m", "run_me", "a"], folder)
    assert json.loads(module[1])["argv"][1:] == ["--local_rank=3", "a"]
    observed = run(
        [sys.executable, "-m", "freeride.observe", "--local_rank=0", "--out", "o", "--x=y", "scripts/look.py", "a"],
        folder,
    )
    assert json.loads(observed[1])["argv"] == ["scripts/look.py", "--local_rank=0", "--x=y", "a"]


def test_a_script_that_starts_no_rank_is_told_so_at_its_end(folder):
    def says(*words):
        done = subprocess.run(
            [sys.executable, "-m", "freeride.run", *words],
            cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=WATCHDOG, check=False,
        )  # fmt: skip
        return done.stderr.count("nothing was hooked")

    assert says("scripts/look.py") == 1
    assert says("scripts/raises.py") == 0  # what is to be read there is the error
    assert says("scripts/children.py") == 1  # by no child


def test_signals_come_to_the_script_itself(folder):
    (folder / "sleeps.py").write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "freeride.run", "sleeps.py"],
        cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WATCHDOG) == 9
