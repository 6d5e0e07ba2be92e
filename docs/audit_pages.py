"""A hook of mkdocs: a page for each installed audit."""

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from gradaudit.audits import audits
from gradaudit.audits.explaining import explain
from gradaudit.formats.explanation import explanation_markdown


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the section of the audits."""
    (reference,) = (section["Reference"] for section in config.nav or () if "Reference" in section)
    reference[-1]["Audits"] = list(_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what ``gradaudit explain`` prints of each audit."""
    for place, text in _pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def _pages() -> dict[str, Any]:
    return {
        f"audits/{name.replace(' ', '-')}.md": explanation_markdown(explain(name))
        for name in audits()
    }
