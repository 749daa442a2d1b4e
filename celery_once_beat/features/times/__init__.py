"""Histograms: how late windows began, how long they waited in their queue, how long they ran."""
