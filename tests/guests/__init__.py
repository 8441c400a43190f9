# SPDX-License-Identifier: GPL-3.0-or-later
"""Booted test hosts with this checkout's runtime installed in them, without a network in the guest."""
