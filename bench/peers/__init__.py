# SPDX-License-Identifier: GPL-3.0-or-later
"""What others use between a sampler and an inference process, one module each, as peers of firsttouch.bench.

Each does the same: float32[12288] goes to the server, which copies it into a batch row and fills float32[1024] from its
first value, which goes back and is returned.
"""
