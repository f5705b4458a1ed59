-- Mark claimed jobs as RUNNING, if the lease named is still the row's, has not expired, and the job is due.
--
-- The last word on "due" is here and not in the worker's timer: a worker's clock that runs fast, or a database
-- clock that was set back, costs another wait and never an early start. Such a job comes back with how far off
-- it is.
-- A job that is RUNNING under this very token was started by an earlier, unanswered call of ours: saying yes
-- again makes the call safe to repeat. Rows are locked in the order of their identity, as everywhere, so
-- that two batches never wait for each other in a circle.
WITH mine AS MATERIALIZED (
    SELECT job.job_id, job.run_at
    FROM unnest(%(job_ids)s::uuid[], %(owners)s::text[], %(tokens)s::bigint[])
        AS asked (job_id, owner, token)
    JOIN scheduler_jobs AS job
        ON job.job_id = asked.job_id AND job.lease_owner = asked.owner AND job.lease_token = asked.token
    WHERE job.state IN ('CLAIMED', 'RUNNING') AND job.lease_expires_at > now()
    ORDER BY job.job_id
    FOR UPDATE OF job
),
started AS (
    UPDATE scheduler_jobs AS job
    SET state = 'RUNNING'
    FROM mine
    WHERE job.job_id = mine.job_id AND mine.run_at <= now()
    RETURNING job.job_id
)
SELECT moment.db_now, mine.job_id, mine.run_at > moment.db_now AS early, mine.run_at
FROM (SELECT now() AS db_now) AS moment
LEFT JOIN mine ON true
ORDER BY mine.job_id;
