# %% [markdown]
# # Own data to forecasts
#
# Readings in a table, a trained method, forecasts with ranges. Your own table takes the place of the
# synthetic city: times as its index, a column for each sensor, an empty cell where a reading is missing
# ([what files may look like](data.md)).

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import cnfgnn

city = cnfgnn.city(sensors=4, days=7, seed=2).readings
readings = pd.DataFrame(city.values, index=pd.DatetimeIndex(city.times), columns=list(city.ids))
sensors = pd.DataFrame(city.positions, index=list(city.ids), columns=["latitude", "longitude"])
print(readings.tail(3).round(1))

# %% [markdown]
# The last seven hours are put aside, as if they were still to come. Training takes the rest: 70 % of it to
# learn from, 10 % to choose the best round by, 20 % for the test errors below. `cnfgnn-plus` needs no
# settings; three make it quick here.

# %%
known = readings.iloc[:-84]
forecaster = cnfgnn.Forecaster(sensors=sensors, training__rounds=3, model__hidden=16, model__sent=8)
forecaster.fit(known)
test = forecaster.result_.test
for steps in (3, 6, 12):
    print(f"{5 * steps} minutes ahead: masked MAE {test.at(steps).masked_mae:.2f} mph")
coverage = test.intervals.overall(80).coverage
print(f"ranges of 80 % held {100 * coverage:.0f} % of the test readings")

# %% [markdown]
# A forecast of the next hour, with ranges in which 80 % of the readings should lie. `predict` takes newer
# readings at any time, without training again.

# %%
issued = [84, 66, 48, 30, 12]  # steps before the end at which a forecast is made
sensor = readings.columns[0]
figure, axes = plt.subplots(figsize=(8, 3))
axes.plot(readings[sensor].iloc[-108:], color="black", linewidth=1, label="readings")
for steps in issued:
    ahead = forecaster.predict(readings.iloc[: len(readings) - steps], intervals=[80])
    low, high = ahead[f"{sensor} low 80"], ahead[f"{sensor} high 80"]
    axes.fill_between(ahead.index, low, high, alpha=0.25, color="tab:blue")
    axes.plot(ahead[sensor], color="tab:blue", label="forecasts, 80 %" if steps == 84 else None)
axes.set_ylabel("mph")
axes.legend()
plt.show()

# %% [markdown]
# `save` writes a run folder, which `Forecaster.load` and the command line open: `cnfgnn forecast`, `cnfgnn
# report`, `cnfgnn live`.

# %%
folder = Path(tempfile.mkdtemp()) / "mine"
forecaster.save(folder)
print(cnfgnn.Forecaster.load(folder).predict(readings).round(1).iloc[[0, -1]])
