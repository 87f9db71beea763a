"""The commands of a site's owner: what was sent, which trainings may begin, and backups."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cnfgnn.cli import progress
from cnfgnn.errors import ConfigError

if TYPE_CHECKING:
    from cnfgnn.federation.site.sent_report import SentReport

MOST_SENSORS = 20  # that the table lists
SiteArgument = Annotated[Path, typer.Argument(metavar="SITE", help="Folder of a site's kit.")]


def sent(
    kit: SiteArgument = Path(),
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How many days to list, up to today.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """At a site: show what was sent, on which day, to which task, and what the server can make of it.

    Requests are listed by verb, and the copies of readings in the time span of each task. The last table
    says which changes of your readings can be detected from all copies that any task could use so far.
    """
    from cnfgnn.federation.kits.kit import check_is_site
    from cnfgnn.federation.site.sent_report import sent_report

    check_is_site(kit)
    report = sent_report(kit, days)
    if as_json:
        print(json.dumps(report.as_json(), allow_nan=False))
        return
    _print_tasks(report, days)
    _print_out(report)


def approve(
    kit: SiteArgument,
    run: Annotated[str | None, typer.Argument(help="The run, by the name that the server gave it.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take the approval of this run back.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List runs that wait, and approved ones.")] = False,
) -> None:
    """At a site: approve a training that waits for its owner (`approve = true` in local/site.toml).

    An approval covers the run with this method, also after `--resume`, and its retraining while it is live.
    """
    from cnfgnn.federation.kits.kit import check_is_site
    from cnfgnn.federation.site import approvals

    check_is_site(kit)
    if listed or run is None:
        if revoke or not listed:
            raise ConfigError("RUN", "name the run, or use --list")
        _list_approvals(kit)
    elif revoke:
        if not approvals.revoke(kit, run):
            raise ConfigError("RUN", f"{run!r} is not approved", approvals.read_approvals(kit))
        print(f"{run} is no longer approved: a training of it is refused from now on")
    else:
        approval = approvals.approve(kit, run)
        print(f"{run} is approved, with {approval.method or 'any method'}")


def backup(
    kit: SiteArgument,
    file: Annotated[
        Path | None, typer.Argument(help="By default SITE-DATE.backup in the current folder.")
    ] = None,
) -> None:
    """At a site: back up its key, blurred copies, states, settings and certificate. The site may be running.

    The file is as secret as the readings, which are not in it.
    """
    from cnfgnn.federation.site.backup import back_up
    from cnfgnn.federation.site.settings import read_site

    file = file or Path(f"{read_site(kit).name}-{time.strftime('%Y%m%dT%H%M%S')}.backup")
    count = back_up(kit, file)
    print(f"backup: {file}, with the copies of {count:,} readings; keep it secret, on another machine")


def restore(
    kit: Annotated[
        Path, typer.Argument(metavar="SITE", help="Folder of the site's kit; it is made if it is not there.")
    ],
    file: Annotated[Path, typer.Argument(help="A backup, or a copy of the site's private folder.")],
) -> None:
    """At a site that does not run: restore what it has lost, on this machine or on a new one.

    Readings that have no copy in the backup are retired: nobody knows what was sent of them.
    """
    from cnfgnn.federation.site.backup import restore as restore_site
    from cnfgnn.federation.spans import format_time

    done = restore_site(kit, file)
    if done.kit:
        when = "" if done.made is None else f" at {format_time(int(done.made))}"
        print(f"kit: {kit}, with settings and certificate as they were{when}: repeat what you changed since")
    for run in done.approved:
        print(f"approved: {run}, as it was then; if you revoked it since, do so again (approve --revoke)")
    if done.retired is None:
        print("key and copies: complete, so that they stay as they are")
    else:
        print(f"key and copies: restored, with the copies of {done.copies:,} readings")
        print(
            f"retired: readings up to {format_time(done.retired)} that have no copy; they are missing for the"
            " federation from now on, and you keep them"
        )
    print(f"states: {', '.join(done.runs) or 'nothing was missing that the backup has'}")
    print(f"next: cnfgnn federation check {kit}, then cnfgnn federation up {kit}")


# ---- what was sent --------------------------------------------------------------------------------------


def _print_tasks(report: SentReport, days: int) -> None:
    if report.tasks:
        progress.out().print(_tasks_table(report))
    else:
        print(f"nothing was sent in the last {days} days" if days > 1 else "nothing was sent today")
    total = report.total
    if total.messages:
        sizes = f"{progress.size(total.sent)} sent, {progress.size(total.received)} received"
        print(f"altogether: {total.messages:,} messages, {report.rounds:,} rounds of training, {sizes}")
    if report.damaged:
        lines = "1 line was" if report.damaged == 1 else f"{report.damaged} lines were"
        print(f"{lines} damaged in sent.jsonl of the kit: what was counted there is missing here")


def _tasks_table(report: SentReport) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("day", "task", "asked for"):
        table.add_column(heading, overflow="fold")
    for heading in ("requests", "messages", "received", "sent", "copies"):
        table.add_column(heading, justify="right", no_wrap=True)
    for key, entry, copies in report.tasks:
        rounds = f"\n{entry.rounds} rounds" if entry.rounds > 1 else "\n1 round" if entry.rounds else ""
        about = f"{key.do} {entry.run}".strip() + (f"\n{entry.method}" if entry.method else "") + rounds
        cells = [key.day, about, f"{copies:,}"]
        for verb, counts in sorted(entry.verbs.items()):
            if not counts:
                continue
            numbers = [f"{counts.requests:,}", "", "", ""]
            if counts.messages:  # otherwise it came with others, which have them
                sizes = [progress.size(counts.received), progress.size(counts.sent)]
                numbers[1:] = [f"{counts.messages:,}", *sizes]
            table.add_row(*map(Text, (cells[0], cells[1], verb, *numbers, cells[2])))
            cells = ["", "", ""]
        table.add_section()
    return table


def _print_out(report: SentReport) -> None:
    from cnfgnn.cli.privacy import print_guarantees

    if report.series is None:
        if report.total.messages:
            print("nothing is blurred at this site: what was sent was computed from the readings themselves")
            print_guarantees(report.guarantees, with_caveats=False)
        return
    if not any(one.out for one in report.series):
        print("no copy of a reading is out")
        return
    print("copies that are out, of all that there are:")
    progress.out().print(_out_table(report))
    more = sorted({one.sensor for one in report.series})[MOST_SENSORS:]
    if more:
        print(f"and {len(more)} more sensors: --json lists all")
    print(
        f"at most {report.most_out:,} copies of a sensor's readings are out: an event changes no more of"
        " them, however long it lasts"
    )
    print_guarantees(report.guarantees, with_caveats=False)
    print("cnfgnn privacy says what else to keep in mind")


def _out_table(report: SentReport) -> Table:
    assert report.series is not None
    names = list(dict.fromkeys(one.name for one in report.series))
    found = {(one.sensor, one.name): one for one in report.series}
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("sensor", overflow="fold")
    for name in names:
        table.add_column(name or "readings", justify="right", overflow="fold")
    for sensor in list(dict.fromkeys(one.sensor for one in report.series))[:MOST_SENSORS]:
        cells = [found.get((sensor, name)) for name in names]
        shown = ["" if one is None else f"{one.out:,} of {one.copies:,}" for one in cells]
        table.add_row(*map(Text, (sensor, *shown)))
    return table


# ---- approvals ------------------------------------------------------------------------------------------


def _list_approvals(kit: Path) -> None:
    from cnfgnn.federation.site.approvals import read_approvals, waiting_now

    waiting, approved = waiting_now(kit), read_approvals(kit)
    for one in waiting:
        rounds = f", {one.rounds} rounds" if one.rounds else ""
        print(f"waits: {one.run} ({one.method}{rounds}), asked {_at(one.asked)}")
    for approval in approved.values():
        when = _at(approval.time)
        print(f"approved: {approval.run} ({approval.method or 'any method'}), {when}")
    if not waiting and not approved:
        print("no run waits, and none is approved")


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
