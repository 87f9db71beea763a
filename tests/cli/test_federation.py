"""What the commands of `cnfgnn federation` print where, without processes; see also tests/federation."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from cnfgnn.cli import federation_tasks
from cnfgnn.cli.federation_tasks import _trained
from cnfgnn.federation.task import Task


@pytest.mark.parametrize("begun", [False, True])
def test_a_training_that_is_stopped_says_so_beside_the_output(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(federation_tasks, "_run_task", stopped)
    if begun:
        (tmp_path / "runs" / "one").mkdir(parents=True)
        (tmp_path / "runs" / "one" / "manifest.json").touch()
    with pytest.raises(typer.Exit) as ended:
        _trained(tmp_path, Task("train", "one"))
    assert ended.value.exit_code == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.strip() == (
        f"stopped; to resume: cnfgnn federation train {tmp_path} --resume one"
        if begun
        else "stopped before the run began"
    )
