-- Insert new jobs: all of them in one statement, or none.
--
-- A conflict on the idempotency key or on the job's own identity (a repeated insert whose first reply was
-- lost) inserts nothing and is no error; `existing.sql` then tells which job stands in its place.
-- An insert waits for another transaction that is inserting the same key; in the order of the keys, two batches
-- never wait for each other in a circle.
-- A delay counts from the database's now(), never from the caller's clock.
INSERT INTO scheduler_jobs (
    job_id, task, payload, run_at, state, attempt, max_attempts, expires_at,
    lease_token, idempotency_key, cancel_requested, created_at
)
SELECT
    asked.job_id,
    asked.task,
    asked.payload::jsonb,
    coalesce(asked.run_at, now() + asked.delay),
    'PENDING',
    0,
    asked.max_attempts,
    coalesce(asked.run_at, now() + asked.delay) + asked.max_age,
    0,
    asked.idempotency_key,
    false,
    now()
FROM unnest(
    %(job_ids)s::uuid[], %(tasks)s::text[], %(payloads)s::text[], %(run_ats)s::timestamptz[],
    %(delays)s::interval[], %(max_attempts)s::integer[], %(max_ages)s::interval[], %(keys)s::text[]
) WITH ORDINALITY AS asked (
    job_id, task, payload, run_at, delay, max_attempts, max_age, idempotency_key, n
)
ORDER BY asked.idempotency_key COLLATE "C", asked.n
ON CONFLICT DO NOTHING
RETURNING scheduler_jobs.job_id, now();
