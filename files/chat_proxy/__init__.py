"""The chat proxy: streams the engine's answers to many clients and keeps them in line.

Runs on the devices with Python 3.10 or later: `python -m chat_proxy`, settings from EDGE_PROXY_*.
"""
