"""Intel N100 mini PCs: four cores without SMT, memory from 8 GB up.

Nothing has to be set here. Three threads on CPUs 1-3, two slots and a prompt cache of 128 MiB come
from the class. Uncomment what you want otherwise.
"""

# Four slots instead of two, on machines with 16 GB. They share the same three cores, so each
# answer is slower while all four are busy.
# slots = 4

# Deeper idle states where power matters more than the first token: C6 takes 195 us to wake up.
# max_cstate = "keep"
# max_exit_latency_us = 200

# A fanless case may get too hot with the performance governor: leave it as the host has it.
# governor = "keep"
