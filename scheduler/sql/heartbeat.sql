-- Renew every lease named that is still the asker's, in one statement.
--
-- The guard is the whole point: without owner and token in it, a worker that slept through its lease would
-- renew its successor's. A row that an open transaction has locked is skipped, not waited for: one stuck row
-- must not let all the others expire. It is reported as held and not extended.
WITH asked AS (
    SELECT asked.job_id, asked.owner, asked.token
    FROM unnest(%(job_ids)s::uuid[], %(owners)s::text[], %(tokens)s::bigint[])
        AS asked (job_id, owner, token)
),
mine AS MATERIALIZED (
    SELECT job.job_id
    FROM asked
    JOIN scheduler_jobs AS job
        ON job.job_id = asked.job_id AND job.lease_owner = asked.owner AND job.lease_token = asked.token
    WHERE job.state IN ('CLAIMED', 'RUNNING')
    ORDER BY job.job_id
    FOR UPDATE OF job SKIP LOCKED
),
extended AS (
    UPDATE scheduler_jobs AS job
    SET lease_expires_at = now() + %(lease)s::interval
    FROM mine
    WHERE job.job_id = mine.job_id
    RETURNING job.job_id, job.cancel_requested
),
held AS (
    SELECT extended.job_id, true AS extended, extended.cancel_requested
    FROM extended
    UNION ALL
    SELECT job.job_id, false, job.cancel_requested
    FROM asked
    JOIN scheduler_jobs AS job
        ON job.job_id = asked.job_id AND job.lease_owner = asked.owner AND job.lease_token = asked.token
    WHERE job.state IN ('CLAIMED', 'RUNNING')
      AND NOT EXISTS (SELECT FROM mine WHERE mine.job_id = asked.job_id)
)
SELECT moment.db_now, held.job_id, held.extended, held.cancel_requested
FROM (SELECT now() AS db_now) AS moment
LEFT JOIN held ON true
ORDER BY held.job_id;
