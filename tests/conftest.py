"""What every test shares: Hypothesis finds the same examples on every run."""

from hypothesis import HealthCheck, settings

# The suite is a check, not a search: no random examples, no deadlines on a busy machine, no database of past runs.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
