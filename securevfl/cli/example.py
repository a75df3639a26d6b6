"""The job file that `securevfl train --example` prints."""

from securevfl.protocols import catalogue

EXAMPLE = f"""\
# securevfl train example.toml
[job]
name = "example"
dataset = "breast_cancer"      # embedded; or [[party]] sections with your own files
algorithm = "fedbcd-p"         # of {", ".join(catalogue.ALGORITHMS)}
rounds = 100                   # at most: training ends once the loss has settled; 20 for blind
model = "linear"               # or mlp, with hidden = [64]
# target_auc = 0.99            # ends it sooner, by scorings that a guard counts
# batch_size = 128             # "full" if absent; smaller ones tell labels
# local_steps = 5              # "exact" where not given; with learning_rate = 0.3, say
seed = 0

[exchange]
scheme = "bfv"                 # of {", ".join(catalogue.EXCHANGES)}
hide = "residuals"             # or both; round_trips = 1 or 2 where auto should not choose

[network]
preset = "wan"                 # or latency_ms and bandwidth_mbit

# [privacy]                    # with scheme = "dp"
# noise_multiplier = 2.0       # or release_budget, or budget, to calibrate it
# clip = 2.0

[audit]
must_resist = ["labels_from_residuals"]  # securevfl audit example.toml ends with status 1 else

[output]
directory = "models"
checkpoint_every = 10

# [preprocess]                 # text becomes 0/1 columns, missing values the median
# categories = ["zip"]         # numbers that are names
# missing = ["-999"]           # beside empty, NA, NaN, null, ? and the like
# rare_count = 10              # what fewer rows have, or less than rare_share, is pooled

# [[party]]
# name = "bank"
# role = "label"
# data = "bank.csv"            # CSV, Parquet, or a shard by `securevfl data convert`
# separator = ";"              # as decimal and encoding, only where it cannot be found out
# id_column = "id"
# label_column = "default"
#
# [[party]]
# name = "shop"
# role = "feature"
# data = "shop.parquet"
# id_column = "id"
"""
