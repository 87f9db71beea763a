# %% [markdown]
# # Comparing methods honestly
#
# Three rules: every method gets the same windows; choices are made by validation errors, and the test split
# is looked at once; a difference smaller than that between seeds is none.

# %%
import matplotlib.pyplot as plt
import numpy as np

import cnfgnn
from cnfgnn.runs.baselines import all_baselines

city = cnfgnn.city(sensors=4, days=7, seed=2)
quick = {"training__rounds": 2, "model__hidden": 16}
candidates = {
    "cnfgnn-plus": {"model__sent": 8, **quick},
    "mlp-fedavg": quick,  # the same without the graph
    "gru-fedavg": {
        "training__client_rounds": 1,
        "training__client_lr": 0.01,
        **quick,
    },  # the paper's baseline
}
seeds = (1, 2, 3)

# %% [markdown]
# Each line is trained with three seeds, and compared by the validation error of its best round. A baseline
# that needs no training belongs in every comparison: whoever does not beat the last value has nothing to
# show. In a file, the same is a plan with `choose = "validation"` for `cnfgnn compare`
# (`experiments/choose.toml`).

# %%
results = {
    name: [cnfgnn.fit(city, name, seed=seed, **settings) for seed in seeds]
    for name, settings in candidates.items()
}
validation = {
    name: [result.progress.best.validation.masked_rmse for result in found] for name, found in results.items()
}
for name, scores in all_baselines(city, cnfgnn.Config().data, "validation").items():
    print(f"{name:15} {scores.overall.masked_rmse:.3f}")
for name, errors in validation.items():
    print(f"{name:15} {np.median(errors):.3f}  of each seed: {', '.join(f'{error:.3f}' for error in errors)}")

# %% [markdown]
# Seeds differ. A bar without its seeds would say more than was measured.

# %%
figure, axes = plt.subplots(figsize=(7, 2.5))
for place, errors in enumerate(validation.values()):
    axes.barh(place, np.median(errors), color="lightgray")
    axes.plot(errors, [place] * len(errors), "o", color="black", markersize=4)
axes.set_yticks(range(len(validation)), list(validation))
axes.set_xlabel("validation masked RMSE, mph; a point for each seed")
plt.show()

# %% [markdown]
# The choice is made. Only now are test errors looked at: of the chosen method, with what its training sent,
# and at each sensor beside those of the last value. A comparison sensor by sensor says more than means: is
# one method better everywhere, or much better at one sensor? The test split has 1.4 days, too few for more:
# with longer data, compare day by day (`cnfgnn evaluate --predictions` and `studies/paired.py`).

# %%
chosen = min(validation, key=lambda name: np.median(validation[name]))
tests = [result.test.overall.masked_rmse for result in results[chosen]]
sent = results[chosen][0].progress.best.training_bytes.per_node / len(city.readings.ids) / 1e6
spread = np.std(tests, ddof=1)
print(f"{chosen}: test masked RMSE {np.mean(tests):.3f} ± {spread:.3f}, {sent:.2f} MB for each sensor")
ours = np.mean([[e.masked_rmse for e in result.test.per_node] for result in results[chosen]], axis=0)
last_value = all_baselines(city, cnfgnn.Config().data, "test")["last value"]
lower = ours < np.array([e.masked_rmse for e in last_value.per_node])
print(f"lower error than the last value at {lower.sum()} of {len(lower)} sensors")
