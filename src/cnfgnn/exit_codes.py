"""The exit codes of the command line, in one table, which the documentation shows."""

from __future__ import annotations

from collections.abc import Mapping

EXIT_CODES: Mapping[int, str] = {
    0: "Success.",
    2: "A setting or an input cannot be used. The message names the key, or the file, line and column.",
    3: "A site failed or did not answer. The message names the site and what it was asked to do;"
    " `federation forecast` also names the sites that made no forecast.",
    4: "A run, a kit or a server cannot be used: it is damaged, already exists, is in use by another process"
    " or was made by a newer version; a port is taken; a certificate has expired.",
    5: "A file cannot be written: the disk is full or permission is denied. Existing files are unchanged.",
    6: "The validation loss is not a number. Earlier rounds are kept.",
    7: "The machine has too little memory, or its GPU failed. A run keeps its completed rounds and can be"
    " resumed.",
    130: "Stopped by Ctrl-C or SIGTERM. A run keeps its completed rounds and can be resumed.",
    141: "The reader of the output has closed it, as in `cnfgnn settings | head -1`.",
}
