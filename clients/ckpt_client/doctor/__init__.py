"""What would fail before a training starts, seen from one host: probes, and judges of them."""
