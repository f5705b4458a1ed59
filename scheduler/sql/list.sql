-- Read a page of jobs in full, soonest first; of one state, or of all.
SELECT
    job.job_id, job.task, job.payload, job.run_at, job.state, job.attempt, job.max_attempts, job.expires_at,
    job.lease_owner, job.lease_token, job.lease_expires_at, job.idempotency_key, job.cancel_requested,
    job.last_error, job.created_at, job.finished_at
FROM scheduler_jobs AS job
WHERE %(state)s::text IS NULL OR job.state = %(state)s::text
ORDER BY job.run_at, job.job_id
LIMIT %(limit)s;
