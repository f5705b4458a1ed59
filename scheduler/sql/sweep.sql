-- End what was abandoned: leases that have expired, and jobs that aged out before anybody claimed them.
--
-- An expired job is due again at once, unless its attempts or its age are exhausted (then it is a dead
-- letter) or its cancellation was asked for. No handler needs to be registered for any of this.
-- The UPDATE re-checks the expiry: a heartbeat may have come first.
WITH expired AS MATERIALIZED (
    SELECT job.job_id, job.state AS was, job.lease_owner AS owner,
        CASE
            WHEN job.cancel_requested THEN 'CANCELLED'
            WHEN job.attempt >= job.max_attempts OR job.expires_at <= now() THEN 'FAILED'
            ELSE 'PENDING'
        END AS next,
        'the lease expired: the worker died, or could not be heard' AS why
    FROM scheduler_jobs AS job
    WHERE job.state IN ('CLAIMED', 'RUNNING') AND job.lease_expires_at <= now()
    ORDER BY job.lease_expires_at, job.job_id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
aged AS MATERIALIZED (
    SELECT job.job_id, job.state AS was, job.lease_owner AS owner, 'FAILED' AS next,
        'the age limit passed before the job could run' AS why
    FROM scheduler_jobs AS job
    WHERE job.state = 'PENDING' AND job.expires_at IS NOT NULL AND job.expires_at <= now()
    ORDER BY job.expires_at, job.job_id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
moved AS (
    UPDATE scheduler_jobs AS job
    SET state = gone.next,
        lease_owner = NULL,
        lease_expires_at = NULL,
        last_error = gone.why,
        finished_at = CASE WHEN gone.next = 'PENDING' THEN NULL ELSE now() END
    FROM (SELECT * FROM expired UNION ALL SELECT * FROM aged) AS gone
    WHERE job.job_id = gone.job_id
      AND (
          (job.state IN ('CLAIMED', 'RUNNING') AND job.lease_expires_at <= now())
          OR (job.state = 'PENDING' AND job.expires_at <= now())
      )
    RETURNING job.job_id, gone.owner, job.lease_token, job.attempt, gone.was, job.state
)
SELECT moment.db_now, moved.job_id, moved.owner, moved.lease_token, moved.attempt, moved.was, moved.state
FROM (SELECT now() AS db_now) AS moment
LEFT JOIN moved ON true
ORDER BY moved.job_id;
