"""The linear forecasts of nodes (`model.linear`), which stay at the nodes, as the attacker can repeat them.

A node's loss is about its linear forecast plus what the network adds, so gradients cannot be explained
without it. The forecaster's weights are not sent. But they follow from the readings of the training windows
by a formula that is public, from the calendar and from means that the server sent itself. So whoever has
estimates of these readings fits the forecasters with the nodes' own code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cnfgnn.attack.recording import Recording
from cnfgnn.attack.replica import DTYPE, Replica
from cnfgnn.data.batch import Batch
from cnfgnn.data.prepared_series import PreparedSeries
from cnfgnn.data.series import Series

# With estimates of fewer training windows, forecasters that leave out those of a fold would know too little.
MOST_WINDOWS = 0.9


@dataclass(frozen=True, eq=False)
class NodeForecasts:
    """Linear forecasters fitted to estimated readings.

    data          the estimates, as nodes prepare their readings
    cross_fitted  whether forecasts of training windows are cross-fitted, as at the nodes; otherwise
                  forecasters are fitted to all windows
    """

    data: PreparedSeries
    cross_fitted: bool

    @classmethod
    def fitted(cls, replica: Replica, recording: Recording, readings: Tensor) -> NodeForecasts:
        """Fitted to readings (n T) in their unit, NaN where there is no estimate."""
        rows, public = replica.rows, recording.public
        assert public is not None
        unknown = (readings.isnan() | public.absent[rows]).numpy()
        weekday = public.moments[:, 1].numpy()
        values = np.where(unknown, np.nan, readings.numpy())
        series = Series(values, unknown, public.time_of_day.numpy(), weekday)
        data = PreparedSeries(
            series,
            replica.scaler,
            "masked",
            replica.windows,
            DTYPE,
            replica.device,
            replica.settings.model,
        )
        if recording.means is not None:
            data.inform(recording.means[rows].to(replica.device, DTYPE))
            data.fit()
        estimated = (~readings.isnan()).any(dim=0)
        starts = torch.from_numpy(replica.windows.starts["train"])
        share = float(estimated[starts].double().mean()) if len(starts) else 0.0
        return cls(data, share >= MOST_WINDOWS)

    def added_to(self, batch: Batch, places: Tensor, h_G: Tensor) -> Batch:
        """The minibatch of training windows at these places (b,), with linear forecasts of its readings."""
        return self.data.with_linear_forecast(batch, "train", places, h_G, self.cross_fitted)
