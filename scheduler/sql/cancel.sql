-- Cancel what has not started: it never will. Ask what runs to stop: its handler decides.
WITH asked AS (
    SELECT asked.job_id, asked.n
    FROM unnest(%(job_ids)s::uuid[]) WITH ORDINALITY AS asked (job_id, n)
),
open AS MATERIALIZED (
    SELECT job.job_id
    FROM asked
    JOIN scheduler_jobs AS job ON job.job_id = asked.job_id
    WHERE job.state IN ('PENDING', 'CLAIMED', 'RUNNING')
    ORDER BY job.job_id
    FOR UPDATE OF job
),
told AS (
    UPDATE scheduler_jobs AS job
    SET state = CASE WHEN job.state = 'RUNNING' THEN 'RUNNING' ELSE 'CANCELLED' END,
        cancel_requested = true,
        lease_owner = CASE WHEN job.state = 'RUNNING' THEN job.lease_owner END,
        lease_expires_at = CASE WHEN job.state = 'RUNNING' THEN job.lease_expires_at END,
        finished_at = CASE WHEN job.state = 'RUNNING' THEN NULL ELSE now() END
    FROM open
    WHERE job.job_id = open.job_id
    RETURNING job.job_id, job.state
)
SELECT
    now() AS db_now,
    asked.job_id,
    CASE
        WHEN told.state = 'CANCELLED' THEN 'cancelled'
        WHEN told.state = 'RUNNING' THEN 'requested'
        WHEN job.job_id IS NOT NULL THEN 'too_late'
        ELSE 'unknown'
    END AS result
FROM asked
LEFT JOIN told ON told.job_id = asked.job_id
LEFT JOIN scheduler_jobs AS job ON job.job_id = asked.job_id
ORDER BY asked.n;
