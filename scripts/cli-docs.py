#!/usr/bin/env python3
"""Man page, bash completion or configuration of FreeRide's programs, from their own --help: what is said in one place.

    scripts/cli-docs.py man PROGRAM VERSION > program.1
    scripts/cli-docs.py completion PROGRAM > program
    scripts/cli-docs.py config PROGRAM... > freeride.toml
    scripts/cli-docs.py reference PROGRAM > program.md

The build runs it for every program (cmake/FreeRideTargets.cmake)."""

import dataclasses
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

FILES = ("plugin", "file", "key", "--key", "--out", "--python", "--state-dir", "--run-dir", "--keys-dir")


@dataclasses.dataclass
class Item:
    """An option, an argument or a verb."""

    name: str
    value: str = ""
    text: str = ""

    @property
    def names(self):
        return self.name.split(",")

    @property
    def takes_value(self):
        return bool(re.split(r"\(Env:|Excludes:|Needs:|REQUIRED", self.value)[0].strip())

    @property
    def choices(self):
        found = re.search(r"\{([^}]*)\}", self.value)
        return found.group(1).split(",") if found else []


@dataclasses.dataclass
class Command:
    words: list
    description: str = ""
    usage: str = ""
    arguments: list = dataclasses.field(default_factory=list)
    options: list = dataclasses.field(default_factory=list)
    verbs: list = dataclasses.field(default_factory=list)
    footer: str = ""


def help_of(words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FREERIDE_")}
    environment["FREERIDE_CONFIG"] = "/dev/null"
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} --help: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def parse(words):
    """What `words --help` says, and of its verbs."""
    command, section, items = Command(words), None, None
    sections = {"Options": command.options, "Positionals": command.arguments, "Subcommands": command.verbs}
    lines = help_of(words).splitlines()
    for line, following in zip(lines, [*lines[1:], ""]):
        heading = line.rstrip(":")
        if line.startswith("Usage: "):
            command.usage, section = line[len("Usage: ") :].replace(words[0], os.path.basename(words[0])), "usage"
        elif line.endswith(":") and heading in sections:
            section, items = heading, sections[heading]
        elif section is None:
            command.description += line + "\n"
        elif section == "footer" or (line and not line.startswith(" ")):
            section = "footer"
            command.footer += line + "\n"
        elif items is not None and line.startswith(" " * 10):
            items[-1].text = f"{items[-1].text} {line.strip()}".strip()
        elif items is not None and line.startswith("  "):
            name, _, rest = line.strip().partition(" ")
            # The text begins in column 30, or on the next line.
            alone = following.startswith(" " * 30) or len(line) <= 30
            value, text = (rest, "") if alone else (line[2 + len(name) : 30], line[30:])
            items.append(Item(name, value.strip(), text.strip()))
    command.verbs = [(verb, parse([*words, verb.name])) for verb in command.verbs]
    return command


# ---- man -------------------------------------------------------------------------------------------------------------


def roff(text):
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def described(items):
    lines = []
    for item in items:
        name = ", ".join(rf"\fB{roff(one)}\fR" for one in item.names)
        value = item.value.replace("(Env:", "(environment: ")
        lines += [".TP", f"{name} {roff(value)}".rstrip(), roff(item.text)]
    return lines


def verb_pages(command, name):
    lines = []
    for verb, inner in command.verbs:
        words = " ".join([name, *inner.words[1:]])
        lines += [f'.SS "{roff(words)}"', roff(verb.text), ".PP", roff(inner.usage or words)]
        own = [item for item in inner.options if "--help" not in item.names]
        lines += described(inner.arguments) + described(own)
        if inner.footer:
            lines += [".PP", ".nf", roff(inner.footer.strip("\n")), ".fi"]
        lines += verb_pages(inner, name)
    return lines


def man(command, version):
    name = os.path.basename(command.words[0])
    # Of the source, so that the same source makes the same page.
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", pathlib.Path(__file__).stat().st_mtime))
    date = datetime.datetime.fromtimestamp(epoch, datetime.UTC).date()
    summary = " ".join(command.description.split()).rstrip(".")
    lines = [f'.TH {name.upper()} 1 "{date}" "FreeRide {version}" "FreeRide"', ".SH NAME"]
    lines += [rf"{roff(name)} \- {roff(summary)}", ".SH SYNOPSIS", rf"\fB{roff(command.usage or name)}\fR"]
    lines += [".SH DESCRIPTION", roff(summary + "."), ".SH OPTIONS", *described(command.arguments + command.options)]
    if command.verbs:
        lines += [".SH VERBS", *verb_pages(command, name)]
    if command.footer:
        lines += [".SH NOTES", ".nf", roff(command.footer.strip("\n")), ".fi"]
    lines += [".SH FILES", ".TP", "/etc/freeride/freeride.toml", "options of every program, a section each"]
    lines += [".SH SEE ALSO", roff("/usr/share/doc/freeride, or docs/README.md of the source")]
    return "\n".join(lines) + "\n"


# ---- bash ------------------------------------------------------------------------------------------------------------

COMPLETION = """# bash completion of {name}; made from its --help
_{function}_tasks() {{
  # The manager's word, if it answers at once.
  {name} tasks --all --format csv --columns task --timeout 1 2>/dev/null | tail -n +2
}}
_{function}_plugins() {{
  # Names of files are anybody's: none that the shell could take for more than a word.
  {name} plugins --format csv --columns plugin --timeout 1 2>/dev/null | tail -n +2 | grep -xE '[[:alnum:]._+-]+'
}}
_{function}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} at='' i options='' verbs='' values=''
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$at ${{COMP_WORDS[i]}}" in
{paths}
    esac
  done
  case "$at" in
{words}
  esac
  case "$at $before" in
{values}
    *) if [[ $word == -* ]]; then values="$options"; else values="$verbs"; fi ;;
  esac
  [[ $values == FILES ]] && {{ mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; }}
  # Not compgen -W: it would expand what it is given.
  local - value
  set -f
  for value in $values; do [[ $value == "$word"* ]] && COMPREPLY+=("$value"); done
  [[ ${{#COMPREPLY[@]}} -eq 0 && $word != -* ]] && mapfile -t COMPREPLY < <(compgen -f -- "$word")
  return 0
}}
complete -o filenames -F _{function} {name}
"""


def completion(root):
    name = os.path.basename(root.words[0])
    function = name.replace("-", "_")
    paths, words, values, seen = [], [], [], set()

    def add_values(at, item):
        for option in item.names:
            if not item.takes_value or (at, option) in seen:
                continue
            seen.add((at, option))
            offered = " ".join(item.choices)
            if option == "--replace":
                offered = f"$(_{function}_tasks)"
            elif not offered:
                offered = "FILES" if option in FILES else " "
            values.append(
                f"    '{at} {option}') values=\"{offered}\" ;;" if at else f"    *' {option}') values=\"{offered}\" ;;"
            )

    def walk(command, at):
        options = [one for item in command.options for one in item.names]
        verbs = " ".join(verb.name for verb, _ in command.verbs)
        arguments = {item.name for item in command.arguments}
        if "task" in arguments or (at == " task" and "name" in arguments):
            verbs = f"$(_{function}_tasks)"
        elif "plugin" in arguments and not at.startswith(" plugin"):
            verbs = f"{verbs} $(_{function}_plugins)".strip()
        inherited = [one for item in root.options for one in item.names] if command is not root else []
        words.append(f'    \'{at}\') options="{" ".join(dict.fromkeys(options + inherited))}" verbs="{verbs}" ;;')
        for item in command.options:
            add_values(at, item)
        for verb, inner in command.verbs:
            paths.append(f"      '{at} {verb.name}') at='{at} {verb.name}' ;;")
            walk(inner, f"{at} {verb.name}")

    walk(root, "")
    # A verb's own options before those of all.
    values.sort(key=lambda line: line.startswith("    *"))
    return COMPLETION.format(
        name=name, function=function, paths="\n".join(paths), words="\n".join(words), values="\n".join(values)
    )


# ---- configuration ----------------------------------------------------------------------------------------------------

HEAD = """# Every key of FreeRide's programs, with its default. To change one, copy its section and the key, without the '#', into
# /etc/freeride/freeride.toml, or into the file that FREERIDE_CONFIG names. A flag and the environment go before it.
"""


def setting(item):
    """An option as a commented key."""
    key = item.names[-1].removeprefix("--").replace("-", "_")
    value = item.value.split("(Env:")[0].strip()
    _, equals, default = value.rpartition("=")
    kind = value.split(":")[0].split("=")[0]
    if not item.takes_value:
        default, equals = "false", "="
    elif equals and not (kind in ("INT", "UINT", "FLOAT") and re.fullmatch(r"[-+.\de]+", default)):
        default = json.dumps(default)  # a size such as 1GiB, too
    return [f"# {item.text}", f"#{key} = {default}" if equals else f"#{key} =  # no default", ""]


def config(roots):
    lines = [HEAD]
    for root in roots:
        lines += [f"[{os.path.basename(root.words[0]).removeprefix('freeride-')}]"]
        for item in root.options:
            if item.names[-1] not in ("--help", "--version"):
                lines += setting(item)
    return "\n".join(lines)


# ---- Markdown --------------------------------------------------------------------------------------------------------


def cell(text):
    return " ".join(text.replace("|", r"\|").replace("<", "&lt;").split())


def listed(items):
    """Options or arguments as a table."""
    rows = ["| option | value | meaning |", "|---|---|---|"]
    for item in items:
        value = re.sub(r"\(Env:\w+\)", "", item.value).strip()
        environment = re.search(r"\(Env:(\w+)\)", item.value)
        text = f"{item.text} (environment: `{environment[1]}`)" if environment else item.text
        names = ", ".join(f"`{name}`" for name in item.names)
        rows.append(f"| {names} | {cell(value)} | {cell(text)} |")
    return [*rows, ""]


def section(command, depth):
    name = " ".join([os.path.basename(command.words[0]), *command.words[1:]])
    lines = [f"{'#' * depth} {name}", "", command.description.strip(), "", "```text", command.usage or name, "```", ""]
    own = [item for item in command.options if "--help" not in item.names]
    if command.arguments + own:
        lines += listed(command.arguments + own)
    if command.footer:
        lines += ["```text", command.footer.strip("\n"), "```", ""]
    for _, inner in command.verbs:
        lines += section(inner, min(depth + 1, 4))
    return lines


def reference(root):
    """A page of all that --help says of a program and its verbs."""
    return "\n".join(section(root, 1))


def keys(root):
    """The keys of a program's section of the configuration file, as a table."""
    name = os.path.basename(root.words[0]).removeprefix("freeride-")
    rows = [f"## [{name}]", "", "| key | default | meaning |", "|---|---|---|"]
    for item in root.options:
        if item.names[-1] in ("--help", "--version"):
            continue
        key, _, default = setting(item)[1].removeprefix("#").partition(" =")
        rows.append(f"| `{key}` | {cell(default.removesuffix('# no default')) or '–'} | {cell(item.text)} |")
    return "\n".join([*rows, ""])


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("man", "completion", "config", "reference"):
        sys.exit(__doc__)
    if sys.argv[1] == "config":
        sys.stdout.write(config([parse([program]) for program in sys.argv[2:]]))
        return
    root = parse([sys.argv[2]])
    if sys.argv[1] == "man":
        sys.stdout.write(man(root, sys.argv[3]))
    else:
        sys.stdout.write({"completion": completion, "reference": reference}[sys.argv[1]](root))


if __name__ == "__main__":
    main()
