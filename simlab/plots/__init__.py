"""Pictures of a run: who held what when, how late things began, and how many jobs stood where.

Each takes a result or a tidy frame, accepts ``ax=``, and returns the Axes. Styles apply inside a context; nothing
is changed at import. Colour never stands alone: jobs carry labels, verdicts are words, marks have shapes. However
large the run, a picture holds at most about `MAX_MARKS` marks.

In a notebook a picture shows once, at the end of the cell that made it. Elsewhere nobody is looking, so a figure is
taken off pyplot's list at once and lives as long as its Axes do; ``axes.figure.savefig(path)`` writes it.
"""

from simlab.plots.base import MAX_BARS, MAX_MARKS, PALETTE, blank_axes
from simlab.plots.chaos import acts_size, plot_acts, plot_effects, plot_lateness_comparison
from simlab.plots.lateness import plot_lateness
from simlab.plots.states import plot_states
from simlab.plots.timeline import plot_side_by_side, plot_timeline, timeline_size

__all__ = [
    "MAX_BARS",
    "MAX_MARKS",
    "PALETTE",
    "acts_size",
    "blank_axes",
    "plot_acts",
    "plot_effects",
    "plot_lateness",
    "plot_lateness_comparison",
    "plot_side_by_side",
    "plot_states",
    "plot_timeline",
    "timeline_size",
]
