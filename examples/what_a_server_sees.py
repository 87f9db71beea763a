# %% [markdown]
# # What a server sees, and the blur
#
# Readings stay with their owners, but what is sent is computed from them. This page takes the place of a
# curious server and reads what it gets, without a blur and with one. [Privacy](privacy.md) has the
# guarantee.

# %%
import cnfgnn  # isort: skip - before PyTorch, so that training is faster beside other programs

import matplotlib.pyplot as plt
import numpy as np
import torch

city = cnfgnn.city(sensors=4, days=4, seed=2)
quick = {"training__rounds": 2, "model__hidden": 16, "model__sent": 8}


def trained(blur: float) -> cnfgnn.Result:
    method = "cnfgnn-private" if blur else "cnfgnn-plus"
    return cnfgnn.fit(city, method, privacy__blur=blur, **quick)


results = {blur: trained(blur) for blur in (0.0, 2.0, 5.0, 10.0)}

# %% [markdown]
# Everything that a server learns comes through a few verbs. The ledger has counted them.

# %%
for purpose, verb, direction, per_node, _ in results[5.0].experiment.ledger.state():
    if direction == "up":
        print(f"{purpose:10} {verb:9} {per_node / len(city.readings.ids) / 1e3:8.1f} kB from each sensor")

# %% [markdown]
# `levels` are averages of past readings, which every sensor sends for every window. Without a blur they are
# nearly the readings themselves; with one, they follow a copy with noise of the size that the owner chose.


# %%
def seen_by_server(result: cnfgnn.Result) -> np.ndarray:
    """What the server takes the reading at the end of each training window for: (windows,) of one sensor."""
    experiment = result.experiment
    squashed = experiment.strategy.nodes.levels()[0, :, 0].double()
    levels = 3 * torch.atanh((squashed / 3).clamp(-0.999, 0.999))
    return (levels * experiment.scaler.std + experiment.scaler.mean).numpy()


starts = results[0.0].experiment.windows.starts["train"]
truth = city.readings.values[starts + 11, 0]  # the twelfth reading of a window is its last
figure, axes = plt.subplots(2, 1, figsize=(8, 4), sharex=True)
for place, blur in enumerate((0.0, 5.0)):
    axes[place].plot(truth[:288], color="black", linewidth=1, label="readings")
    axes[place].plot(
        seen_by_server(results[blur])[:288], ".", markersize=3, label=f"at the server, blur {blur:g} mph"
    )
    axes[place].set_ylabel("mph")
    axes[place].legend(loc="lower right")
plt.show()

# %% [markdown]
# What the blur costs, and what it hides. The first two columns are how far the server's guess is from a
# reading, and from the mean of an hour; the third is the error of the forecasts, which the owner makes from
# the true readings. A blur of 5 mph leaves a single reading uncertain. It hides neither a jam, which is much
# larger, nor what changes slowly, because noise averages out over many readings.

# %%
print("blur   the server is off by       forecasts are off by (RMSE, mph)")
for blur, result in results.items():
    guess = seen_by_server(result)
    there = np.isfinite(truth) & ~city.readings.missing[starts + 11, 0]
    off = np.sqrt(np.mean((guess - truth)[there] ** 2))
    hours = np.array_split((guess - truth)[there], there.sum() // 12)
    mean = np.sqrt(np.mean([hour.mean() ** 2 for hour in hours]))
    error = result.test.overall.masked_rmse
    print(f"{blur:4g}   {off:5.2f}, over an hour {mean:5.2f}   {error:.2f}")
