-- An operator's second chance for dead letters: PENDING again, due now, with all attempts before them.
-- The token is not reset: a worker left over from before must stay fenced. The age limit is lifted, for the
-- operator has judged that the job is still worth running.
WITH dead AS MATERIALIZED (
    SELECT job.job_id
    FROM scheduler_jobs AS job
    WHERE job.job_id = ANY (%(job_ids)s::uuid[]) AND job.state = 'FAILED'
    ORDER BY job.job_id
    FOR UPDATE OF job
),
replayed AS (
    UPDATE scheduler_jobs AS job
    SET state = 'PENDING',
        run_at = now(),
        attempt = 0,
        expires_at = NULL,
        cancel_requested = false,
        finished_at = NULL
    FROM dead
    WHERE job.job_id = dead.job_id
    RETURNING job.job_id
)
SELECT moment.db_now, replayed.job_id
FROM (SELECT now() AS db_now) AS moment
LEFT JOIN replayed ON true
ORDER BY replayed.job_id;
