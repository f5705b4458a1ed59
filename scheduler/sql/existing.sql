-- Find the jobs that stood in the way of an insert, and say whether they are the same request.
-- A repeated insert of the very same job is found by its identity first.
-- A statement of its own: its snapshot is younger than the conflict, so that it sees the row which won.
SELECT
    asked.n,
    job.job_id,
    job.task = asked.task AND job.payload = asked.payload::jsonb AS same,
    now() AS db_now
FROM unnest(%(job_ids)s::uuid[], %(tasks)s::text[], %(payloads)s::text[], %(keys)s::text[])
    WITH ORDINALITY AS asked (job_id, task, payload, idempotency_key, n)
JOIN scheduler_jobs AS job
    ON job.idempotency_key = asked.idempotency_key OR job.job_id = asked.job_id
ORDER BY asked.n, job.job_id = asked.job_id DESC;
