"""The page of commands, from the parser itself."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import typer

from curriculoss import cli

HEAD = """# Commands

Made from the parser; `curriculoss COMMAND --help` prints the same. Exit codes: 0 success; 1 trouble with a file or the
machine; 2 a mistake in the command; 70 a bug; 130 and 143 an interruption.

Completion for your shell: `curriculoss --install-completion`.
"""


def write(path: Path) -> None:
    """Write a section per command: what it does, examples, arguments and options."""
    group: Any = typer.main.get_command(cli.app)
    text = HEAD + "".join(_sections("curriculoss", group))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _sections(name: str, group: Any) -> list[str]:
    made = []
    for key, command in sorted(group.commands.items()):
        full = f"{name} {key}"
        made += _sections(full, command) if hasattr(command, "commands") else [_section(full, command)]
    return made


def _section(name: str, command: Any) -> str:
    arguments = [x for x in command.params if x.param_type_name == "argument"]
    options = [x for x in command.params if x.param_type_name == "option" and "--help" not in x.opts]
    shown = " ".join(_metavar(x) for x in arguments)
    usage = f"{name} {shown}".strip() + (" [OPTIONS]" if options else "")
    rows = [f"| `{_metavar(x)}` | {_cell(x.help)} |" for x in arguments]
    rows += [f"| {_flags(x)} | {_cell(x.help)}{_required(x)} |" for x in options]
    table = "\n| argument or option | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""
    return f"\n## {name}\n\n```text\n{usage}\n```\n\n{_about(command.help)}\n{table}"


def _metavar(argument: Any) -> str:
    return (argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")


def _about(text: str) -> str:
    """A command's help as Markdown: the paragraph after \\b holds examples."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = part.splitlines()
        if lines[0].strip() == "\b":
            parts.append("```sh\n" + "\n".join(lines[1:]) + "\n```")
        else:
            parts.append(_options_as_code(" ".join(line.strip() for line in lines)))
    return "\n\n".join(parts)


def _flags(option: Any) -> str:
    return "<br>".join(f"`{x}`" for x in [*option.opts, *option.secondary_opts])


def _required(option: Any) -> str:
    return " Required." if option.required else ""


def _cell(text: str | None) -> str:
    return _options_as_code((text or "").replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*"))


def _options_as_code(text: str) -> str:
    """Sphinx would make a dash of the hyphens of `--noise`; what is code already stays as it is."""
    return re.sub(r"`[^`]*`|--[a-z][a-z-]*", lambda match: f"`{match[0].strip('`')}`", text)
