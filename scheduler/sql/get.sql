-- Read one job in full.
SELECT
    job.job_id, job.task, job.payload, job.run_at, job.state, job.attempt, job.max_attempts, job.expires_at,
    job.lease_owner, job.lease_token, job.lease_expires_at, job.idempotency_key, job.cancel_requested,
    job.last_error, job.created_at, job.finished_at
FROM scheduler_jobs AS job
WHERE job.job_id = %(job_id)s::uuid;
