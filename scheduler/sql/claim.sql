-- Take due jobs that nobody holds and nobody has locked.
--
-- The pick is materialised, so that its LIMIT is evaluated once. SKIP LOCKED lets twenty workers walk the
-- same index without waiting for each other. Attempt and token rise here, at the claim: a job that kills its
-- worker still runs out of attempts. The reply carries how far off the job is, not when it is.
WITH due AS MATERIALIZED (
    SELECT job.job_id
    FROM scheduler_jobs AS job
    WHERE job.state = 'PENDING'
      AND job.run_at <= now() + %(lookahead)s::interval
      AND job.task = ANY (%(tasks)s::text[])
      AND (job.expires_at IS NULL OR job.expires_at > now())
    ORDER BY job.run_at, job.job_id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE scheduler_jobs AS job
    SET state = 'CLAIMED',
        attempt = job.attempt + 1,
        lease_token = job.lease_token + 1,
        lease_owner = %(owner)s,
        lease_expires_at = now() + %(lease)s::interval
    FROM due
    WHERE job.job_id = due.job_id
    RETURNING job.job_id, job.task, job.payload, job.attempt, job.max_attempts, job.lease_token, job.run_at
)
SELECT
    moment.db_now, claimed.job_id, claimed.task, claimed.payload, claimed.attempt, claimed.max_attempts,
    claimed.lease_token, claimed.run_at
FROM (SELECT now() AS db_now) AS moment
LEFT JOIN claimed ON true
ORDER BY claimed.run_at, claimed.job_id;
