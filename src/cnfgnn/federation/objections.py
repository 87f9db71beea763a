"""Why a server leaves a site out, as a word from a fixed list that both know.

The server's operator reads a sentence of the server. The site's owner is told the word, because what a server
writes is not to be trusted, and reads the site's own sentence.
"""

from __future__ import annotations

# What the owner of the site reads.
OBJECTIONS = {
    "version": "it runs another version of cnfgnn than the server: install the same version",
    "clock": "its clock differs from the server's: set the clock (NTP)",
    "sensors": "its kit lists other sensors than the server's kit: use kits of the same project file",
    "blur": "its blur is less than the project asks for: set blur in local/site.toml",
    "readings": "the time steps or the further inputs of its readings do not fit those of the other sites:"
    " cnfgnn federation check shows what they are",
    "memory": "it has too little memory for this run: raise memory in local/site.toml",
    "report": "what it reports about itself cannot be used: install the same version as the server",
}


class Objection(str):
    """The server's sentence, with the word."""

    code: str

    def __new__(cls, code: str, sentence: str) -> Objection:
        made = super().__new__(cls, sentence)
        made.code = code
        return made


def code_of(problem: object) -> str:
    """The word for a problem; empty if there is none."""
    return problem.code if isinstance(problem, Objection) else ""
