"""AMD Ryzen boxes: four to eight cores with SMT; the engine gets one thread a physical core.

Nothing has to be set here. Four slots (from 8 GB of memory on) and a prompt cache of 256 MiB come
from the class. Uncomment what you want otherwise.
"""

# The whole share of its cores, on a machine that does nothing else.
# cpu_share_percent = 100

# Longer conversations: 12 KiB of memory a token with the default model.
# context_per_slot = 4096
