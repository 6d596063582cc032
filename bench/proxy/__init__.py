"""What a proxy between a browser and llama-server costs: `make bench-proxy`, docs/benchmarks.md."""
