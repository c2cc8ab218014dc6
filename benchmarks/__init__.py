"""What the operator costs and how fast it is, measured on real servers. See docs/benchmarks.md."""
