"""Runs a page: its Python in one namespace, its commands in one folder, its servers on free ports."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from importlib.metadata import metadata
from pathlib import Path

from doc_pages import ROOT, Block, blocks_of
from needs import need
from packaging.requirements import Requirement
from processes import Proc, Processes, wait_until
from servers import RedisServer, find_servers, need_server

HERE = Path(__file__).parent
_LOCAL = re.compile(r"(?<=//|.@)localhost(?::(\d+))?(?=[/\"';\s]|$)")
_SUCCEEDED = re.compile(r"Task \S+ succeeded")


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Each command of a console block with the output that is shown for it."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((re.sub(r"\s{2,}# .*$", "", line.removeprefix("$ ")), ""))
        else:
            assert found, f"{block}: output before a command"
            found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
    return found


def agrees(shown: str, real: str) -> bool:
    """Whether output is what the page shows; there ``…`` stands for any text, alone on a line for any lines."""
    lines = [
        "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"
        for line in (line.rstrip() for line in shown.rstrip().splitlines())
    ]
    found = "".join(f"{line.rstrip()}\n" for line in real.rstrip().splitlines())
    return re.fullmatch("".join(lines), found) is not None


def missing_words(shown: str, real: str, may_miss: Collection[str]) -> list[str]:
    """What a command of which the output varies doesn't print, though the page shows it.

    Headings of tables, which are in capitals, are to be the same, in order. Of the rest each word counts that is only
    letters: no figures, times, names of hosts and processes. `may_miss` are words that aren't there each time.
    """

    def headings(text: str) -> list[str]:
        lines = [" ".join(line.split()) for line in text.splitlines()]
        return [line for line in lines if re.fullmatch("[A-Z ]+", line)]

    def words(text: str) -> set[str]:
        stripped = (word.strip(",;.():") for word in text.split())
        return {word for word in stripped if re.fullmatch("[A-Za-z][A-Za-z-]*", word)}

    if headings(shown) != headings(real):
        return headings(shown) or headings(real)
    return sorted(words(shown) - words(real) - set(may_miss))


class Page:
    """One page as it runs. Blocks that are taken by another test are left out."""

    def __init__(self, page: str, procs: Processes, folder: Path, server: RedisServer) -> None:
        self.page = page
        self.procs = procs
        self.folder = folder
        self.server = server
        self.started: list[RedisServer] = []
        self.beats: list[Proc] = []
        self.workers: list[Proc] = []
        self.output = ""
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {"PYTHONPATH": os.pathsep.join(paths)}
        self._driver: subprocess.Popen[str] | None = None

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._driver is not None:
            self._driver.stdin.close()
            self._driver.wait(60)
            self._driver.stdout.close()
        self.procs.end()
        for server in self.started:
            server.__exit__()

    def run(self, taken: Callable[[Block], bool]) -> int:
        """Run all blocks in order; returns how many."""
        run = {"python": self._python, "console": self._console, "text": self._text, "conf": self._conf}
        number = 0
        for block in blocks_of(self.page):
            if block.not_run or taken(block):
                continue
            assert block.language in run, f"{block}: nobody runs {block.language or 'what has no language'}"
            run[block.language](block)
            number += 1
        self.end()
        return number

    def here(self, text: str) -> str:
        """The text with this page's server in the place of the usual one."""
        return _LOCAL.sub(lambda m: f"127.0.0.1:{self.server.port}" if m[1] in (None, "6379") else m[0], text)

    def end(self) -> None:
        """All that was started is still there, and ends when it is told to."""
        for proc in (*self.beats, *self.workers):
            assert proc.alive, f"{proc!r} ended:\n{proc.tail()}"
        self._stop(self.beats)
        # A task that shows what becomes of a failure.
        code = (block.text for block in blocks_of(self.page) if block.language == "python")
        self._stop(self.workers, raises=any(re.search(r"^ +raise ", text, re.MULTILINE) for text in code))

    # -- python -----------------------------------------------------------------------------------------------

    def _python(self, block: Block) -> None:
        text = self.here(block.text)
        if block.name:
            path = self.folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            # What was prepared is what a project has already.
            prepared = path.with_name(path.name + ".prepared")
            path.write_text((prepared.read_text() if prepared.exists() else "") + text)
        self.output = self.execute(text, f"<{block}>")

    def execute(self, code: str, where: str) -> str:
        """Execute code in the page's namespace; returns what it prints."""
        if self._driver is None:
            self._driver = subprocess.Popen(
                [sys.executable, str(HERE / "doc_driver.py")], cwd=self.folder, text=True,
                env={**os.environ, **self.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        print(json.dumps({"code": code, "where": where}), file=self._driver.stdin, flush=True)
        line = self._driver.stdout.readline()
        assert line, f"{where} ended the process"
        answer = json.loads(line)
        assert not answer["error"], f"{where}:\n{answer['error']}"
        return answer["output"]

    def _text(self, block: Block) -> None:
        self._compare(str(block), block.text, self.output)

    @staticmethod
    def _compare(what: str, shown: str, real: str) -> None:
        assert agrees(shown, real), f"{what}\nshows\n{shown}\nand what comes is\n{real}"

    # -- commands ---------------------------------------------------------------------------------------------

    def _console(self, block: Block) -> None:
        began = 0
        for command, shown in commands_of(block):
            program = command.split()[0]
            if re.match(r"celery -A \S+ (beat|worker)\b", command):
                began += self._daemon(command, first=not began)
            elif program == "pip":
                check_install(command)
            elif program == "make":
                check_target(command)
            else:
                real = self._shell(command)
                if block.comment.startswith("varies"):
                    odd = missing_words(shown, real, may_miss=block.comment.partition(":")[2].split())
                    assert not odd, f"{block}: {command}\nshows {odd}, and what comes is\n{real}"
                else:
                    self._compare(f"{block}: {command}", shown or "…", real)
        if began and self.workers:
            self._wait_for_a_window(block)

    def _daemon(self, command: str, *, first: bool) -> bool:
        """Start a beat or a worker and wait until it is there; returns whether it is a beat."""
        is_beat = re.match(r"celery -A \S+ beat\b", command) is not None
        if is_beat and first:
            self._stop(self.beats)  # those of the block before
        group = self.beats if is_beat else self.workers
        words = shlex.split(command)
        proc = self.procs.start(
            [sys.executable, "-m", *words], name=f"{'beat' if is_beat else 'worker'}{len(group)}", cwd=self.folder,
            env={name: value for name, value in self.env.items() if name != "PYTHONPATH"},
            ready=r"\. maxinterval -> | ready\.$",
        )  # fmt: skip
        group.append(proc)
        proc.wait_ready()
        return is_beat

    def _wait_for_a_window(self, block: Block) -> None:
        def succeeded() -> int:
            return sum(len(_SUCCEEDED.findall(proc.log)) for proc in self.workers)

        before = succeeded()
        wait_until(lambda: succeeded() > before, f"{block}: a worker executes what beat sends", 60)
        consoles = (each for each in blocks_of(self.page) if each.language == "console")
        if any(re.search(r"^\S.* failed ", each.text, re.MULTILINE) for each in consoles):  # shown by what comes next
            failed = re.compile(r"Task \S+ raised")
            wait_until(lambda: any(failed.search(proc.log) for proc in self.workers), f"{block}: a task fails", 60)

    def _shell(self, command: str) -> str:
        binaries = Path(sys.executable).parent
        command = re.sub(r"\bredis-cli\b", lambda _: f"{need('redis-cli')} -p {self.server.port}", command)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"], cwd=self.folder, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **self.env, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"},
        )  # fmt: skip
        assert done.returncode == 0, f"{self.page}: {command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    @staticmethod
    def _stop(group: list[Proc], *, raises: bool = False) -> None:
        for proc in group:
            proc.terminate()
        for proc in group:
            assert proc.wait(60) == 0, f"{proc!r}:\n{proc.tail()}"
            assert raises or "Traceback" not in proc.log, proc.log
        group.clear()

    # -- servers ----------------------------------------------------------------------------------------------

    def _conf(self, block: Block) -> None:
        """From here on the page's server is one with this file."""
        path = self.folder / block.name
        path.write_text(block.text)
        self.server = start_with(path)
        self.started.append(self.server)


def start_with(path: Path, *args: str) -> RedisServer:
    """A server with that configuration; Redis itself, where it is there."""
    return RedisServer.start(find_servers().get("redis") or need_server(), args=("--include", str(path), *args))


def check_install(command: str) -> None:
    """``pip install`` names this project, with extras that it has, or what the project itself installs."""
    project = metadata("celery-once-beat")
    extras = set(project.get_all("Provides-Extra") or ())
    known = {Requirement(text).name for text in project.get_all("Requires-Dist") or ()}
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("pip", "install"), command
    for word in words:
        wanted = Requirement(word)
        assert wanted.name in {*known, project["Name"]}, f"{command}: {word}"
        assert wanted.name != project["Name"] or wanted.extras <= extras, f"{command}: {word}"


def check_target(command: str) -> None:
    """``make`` has such a target."""
    done = subprocess.run(["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
