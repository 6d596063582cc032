"""Settings of every host. Each line shows a default: uncomment it to change it.

A group's file beside this one wins over it, and a host's own data in fleet.py over both. These are
the settings that people change first; docs/settings.md has them all, with units and bounds.
"""

# --- How to log in: as root, or as a user who may use sudo without a password. What ssh-agent and
# ~/.ssh/config offer is used without being named here. sudo is used wherever the login is not root.
# ssh_user = "edge"
# ssh_key = "~/.ssh/id_ed25519"
# ssh_strict_host_key_checking = "yes"   # refuse a host that known_hosts does not list

# --- The model. Set the source and the digest together.
# model_source = (
#     "hub:Qwen/Qwen2.5-0.5B-Instruct-GGUF@9217f5db79a29953eb74d5343926648285ec7e67"
#     "/qwen2.5-0.5b-instruct-q4_k_m.gguf"
# )
# model_sha256 = "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db"

# --- Who may reach the chat. 127.0.0.1 is the host itself, "0.0.0.0" its whole network, which needs
# keys: `edge key new NAME --file inventory/api-keys` makes one, and the file is named here.
# proxy_listen = "127.0.0.1"
# api_keys_file = ""
# proxy_port = 8000

# --- How much of a host the engine takes.
# cpu_share_percent = 75      # of the cores that the engine gets
# system_cores = 1            # cores that it never gets
# context_per_slot = 2048     # tokens of one conversation
# slots = "auto"              # conversations at once: by hardware and memory
# memory_max_mib = "auto"     # 1144 (1.2 GB), or more where the model needs it

# --- How it answers where a request does not say.
# temperature = 0.7
# max_tokens = 512
# system_prompt = ""

# --- The operating system.
# governor = "performance"    # or "keep"
# max_cstate = 1              # or "keep"; deeper states save power and cost latency
# max_exit_latency_us = "any" # or how long an idle state may take to wake up
# take_over_power_daemons = False
# Off unless asked for (docs/operations.md says what each is good for):
# zram_swap_percent = 0       # compressed swap, % of memory
# hardware_watchdog_s = 0     # the hardware restarts a host that hangs for so long
# noatime = False             # fewer writes of an SD card
# transparent_huge_pages = "keep"

# --- What acts only from the next boot is said; "if_needed" lets a rollout reboot for it, one host
# at a time.
# reboot = "never"
