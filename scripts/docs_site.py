"""MkDocs' hook for FreeRide's site (mkdocs.yml): what lies outside of docs/, what is made from the programs, links between both.

A page of the site is a file below docs/, a file of OUTSIDE, or made from `--help` of the programs in FREERIDE_DOCS_BIN. In a
page, `<!-- file: PATH LANGUAGE -->` stands for that file of the tree, and `<!-- configuration -->` for all keys of all programs.
Links are written as in the tree; one to a file that is no page of the site becomes its text alone."""

import importlib.util
import os
import pathlib
import posixpath
import re
import subprocess
import sys

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

TREE = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("ctl", "manager", "worker", "node", "runner", "recorder", "web")
OUTSIDE = {  # page of the site -> file of the tree
    "operators/security.md": "SECURITY.md",
    "authors/template.md": "plugins/template/README.md",
    "reference/wire.md": "bus/WIRE.md",
    "reference/pages.md": "pages/README.md",
    "reference/recordings.md": "recorder/README.md",
    "lab/notes.md": "bench/NOTES.md",
    "lab/bench.md": "bench/README.md",
    "lab/tables.md": "bench/tables/README.md",
    "lab/details.md": "bench/tables/details.md",
    "changelog.md": "CHANGELOG.md",
    "contribute/index.md": "CONTRIBUTING.md",
    "contribute/architecture.md": "ARCHITECTURE.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
INCLUDED = re.compile(r"^<!-- file: (\S+) (\w+) -->$", re.M)


def readmes():
    """READMEs of folders that are no page yet: page of the site -> file of the tree."""
    listed = subprocess.run(["git", "ls-files", "*README.md"], cwd=TREE, capture_output=True, text=True, check=True)
    taken = {*OUTSIDE.values(), "README.md", "docs/README.md"}
    return {
        f"folders/{name.removesuffix('/README.md').replace('/', '-')}.md": name
        for name in listed.stdout.split()
        if name not in taken
    }


PAGES = OUTSIDE | readmes()
SOURCES = {source: page for page, source in PAGES.items()}


def cli_docs():
    spec = importlib.util.spec_from_file_location("cli_docs", TREE / "scripts/cli-docs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cli_docs"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


class Programs:
    """The programs' --help, asked once."""

    def __init__(self):
        self.docs = cli_docs()
        self.parsed = {}

    def get(self, name):
        if name not in self.parsed:
            program = pathlib.Path(os.environ.get("FREERIDE_DOCS_BIN", TREE / "build/dev/bin")) / f"freeride-{name}"
            if not program.exists():
                raise PluginError(f"{program} is not built: use make docs")
            self.parsed[name] = self.docs.parse([str(program)])
        return self.parsed[name]

    def reference(self, name):
        return self.docs.reference(self.get(name))

    def configuration(self):
        return "\n".join(self.docs.keys(self.get(name)) for name in PROGRAMS if name != "runner")


programs = Programs()


def on_config(config):
    """The parts of the navigation that follow from lists here."""
    config.nav += [
        {
            "Reference": [
                {"Reference": "reference/index.md"},
                {"Configuration": "reference/configuration.md"},
                {"Verdicts": "reference/verdicts.md"},
                {"Time limits": "reference/time-limits.md"},
                {"Metrics": "reference/metrics.md"},
                {"Commands": [{f"freeride-{name}": f"reference/freeride-{name}.md"} for name in PROGRAMS]},
                {"Wire": "reference/wire.md"},
                {"Pages": "reference/pages.md"},
                {"Recordings": "reference/recordings.md"},
                {"plugin.h": "reference/plugin-h.md"},
                {"hook.h": "reference/hook-h.md"},
                {"pages.h": "reference/pages-h.md"},
            ]
        },
        {
            "Results": [
                {"Results": "results.md"},
                {"A long run": "long-run.md"},
                {"Lab: measurements": "lab/bench.md"},
                {"Lab: notes": "lab/notes.md"},
                {"Lab: the paper's tables": "lab/tables.md"},
                {"Lab: tables in detail": "lab/details.md"},
            ]
        },
        {
            "Contribute": [
                {"Contributing": "contribute/index.md"},
                {"Change a policy": "contribute/policies.md"},
                {"Architecture": "contribute/architecture.md"},
                {"Decisions": "decisions.md"},
                {"Claims and tests": "contribute/claims.md"},
                {"Security: claims and tests": "contribute/claims-security.md"},
                {"Inside the manager": "internals/manager.md"},
                {"Inside the worker": "internals/worker.md"},
                {"Inside the hook": "internals/hook.md"},
                {"Inside the shim": "internals/shim.md"},
                {"Inside a batch": "internals/batches.md"},
                {"Inside the runner": "internals/runner.md"},
                {"Changelog": "changelog.md"},
                {"Folders": [{source.removesuffix("/README.md"): page} for page, source in readmes().items()]},
            ]
        },
    ]
    return config


def on_files(files, config):
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(TREE / source).read_text()))
    for name in PROGRAMS:
        files.append(File.generated(config, f"reference/freeride-{name}.md", content=programs.reference(name)))
    return files


def on_post_build(config):
    """Nothing is loaded from outside: Material's script names two addresses, of what no page here has."""
    site = pathlib.Path(config.site_dir)
    for script in site.glob("assets/javascripts/bundle*.js"):
        script.write_text(script.read_text().replace("https://unpkg.com/", "nowhere/"))
    for page in site.glob("**/*.html"):
        # Of Markdown's readers only this one ends a list at a table or a paragraph that is indented by less than four.
        if torn := re.search(r"<p>(?:(?!</p>).)*?\n((?:[-*]|\d+\.) (?:(?!</p>)[^\n]){0,60})", page.read_text(), re.S):
            raise PluginError(f"{page}: an item of a list is running text: {torn[1]}")
        for tag in re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text()):
            loaded = re.search(r'(?:src|href)="?(?:https?:)?//', tag)
            if loaded and 'rel="canonical"' not in tag:
                raise PluginError(f"{page} loads something from outside: {tag}")


def source_of(page):
    return PAGES.get(page, f"docs/{page}")


def relinked(text, page):
    """The text of a page, with links that lead where the site has what they name."""
    here = posixpath.dirname(source_of(page))

    def link(match):
        image, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return match[0]
        named = posixpath.normpath(posixpath.join(here, path))
        if (TREE / named).is_dir():
            named += "/README.md"
        if named in SOURCES:
            to = SOURCES[named]
        elif named.startswith("docs/") and named != "docs/README.md":
            to = named.removeprefix("docs/")
        elif named in ("README.md", "docs/README.md"):
            to = "index.md"
        else:
            return label
        return f"{image}[{label}]({posixpath.relpath(to, posixpath.dirname(page) or '.')}{hash_}{anchor})"

    parts, at = [], 0
    for fenced in FENCED.finditer(text):
        parts += [LINK.sub(link, text[at : fenced.start()]), fenced[0]]
        at = fenced.end()
    return "".join([*parts, LINK.sub(link, text[at:])])


def on_page_markdown(markdown, page, config, files):
    if page.file.src_uri.startswith(("reference/", "lab/", "folders/", "internals/", "changelog")):
        page.meta.setdefault("search", {"boost": 0.1})  # who searches wants the guides first
    if INCLUDED.search(markdown):
        page.meta["hide"] = ["toc"]  # its lines are long
    text = INCLUDED.sub(lambda match: f"```{match[2]}\n{(TREE / match[1]).read_text()}```", markdown)
    if "<!-- configuration -->" in text:
        text = text.replace("<!-- configuration -->", programs.configuration())
    return relinked(text, page.file.src_uri)
