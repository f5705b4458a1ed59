-- Count jobs by state, and say for how long the oldest due one has been waiting.
SELECT
    now() AS db_now,
    job.state,
    count(*) AS jobs,
    max(now() - job.run_at) FILTER (WHERE job.state = 'PENDING' AND job.run_at <= now()) AS oldest_due
FROM scheduler_jobs AS job
GROUP BY job.state
UNION ALL
SELECT now(), NULL, 0, NULL
ORDER BY state;
