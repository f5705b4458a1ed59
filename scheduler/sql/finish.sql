-- Write how attempts ended, each if the lease named is still the row's.
--
-- Retry is rescheduling: the job is PENDING again at now() + delay, unless its attempts or its age are
-- exhausted (a dead letter) or its cancellation was asked for. A release gives the attempt back: it never ran.
-- `recovered` says that the row, under this very token, stands as this outcome leaves it: an earlier call of
-- ours did it and its reply was lost. An old and a new lease of one job may stand in one batch, so that the
-- answer goes by the place in the batch and not by the job.
WITH asked AS (
    SELECT asked.job_id, asked.owner, asked.token, asked.kind, asked.delay, asked.error, asked.n
    FROM unnest(
        %(job_ids)s::uuid[], %(owners)s::text[], %(tokens)s::bigint[], %(kinds)s::text[],
        %(delays)s::interval[], %(errors)s::text[]
    ) WITH ORDINALITY AS asked (job_id, owner, token, kind, delay, error, n)
),
mine AS MATERIALIZED (
    SELECT job.job_id, asked.kind, asked.delay, asked.error, asked.n,
        CASE asked.kind
            WHEN 'succeeded' THEN 'SUCCEEDED'
            WHEN 'failed' THEN 'FAILED'
            WHEN 'cancelled' THEN 'CANCELLED'
            WHEN 'released' THEN 'PENDING'
            WHEN 'retry' THEN CASE
                WHEN job.cancel_requested THEN 'CANCELLED'
                WHEN job.attempt >= job.max_attempts OR now() + asked.delay >= job.expires_at THEN 'FAILED'
                ELSE 'PENDING'
            END
        END AS next
    FROM asked
    JOIN scheduler_jobs AS job
        ON job.job_id = asked.job_id AND job.lease_owner = asked.owner AND job.lease_token = asked.token
    WHERE job.state = CASE asked.kind WHEN 'released' THEN 'CLAIMED' ELSE 'RUNNING' END
    ORDER BY job.job_id
    FOR UPDATE OF job
),
written AS (
    UPDATE scheduler_jobs AS job
    SET state = mine.next,
        run_at = CASE WHEN mine.kind = 'retry' AND mine.next = 'PENDING' THEN now() + mine.delay ELSE job.run_at END,
        attempt = CASE WHEN mine.kind = 'released' THEN job.attempt - 1 ELSE job.attempt END,
        lease_owner = NULL,
        lease_expires_at = NULL,
        last_error = coalesce(mine.error, job.last_error),
        finished_at = CASE WHEN mine.next = 'PENDING' THEN NULL ELSE now() END
    FROM mine
    WHERE job.job_id = mine.job_id
    RETURNING job.job_id, job.state, mine.n
)
SELECT
    now() AS db_now,
    asked.job_id,
    written.job_id IS NOT NULL AS accepted,
    written.job_id IS NULL
        AND job.lease_token = asked.token
        AND CASE asked.kind
            WHEN 'succeeded' THEN job.state = 'SUCCEEDED'
            WHEN 'failed' THEN job.state = 'FAILED'
            WHEN 'cancelled' THEN job.state = 'CANCELLED'
            WHEN 'released' THEN job.state = 'PENDING'
            WHEN 'retry' THEN job.state IN ('PENDING', 'FAILED', 'CANCELLED')
        END AS recovered,
    coalesce(written.state, job.state) AS state
FROM asked
LEFT JOIN written ON written.n = asked.n
LEFT JOIN scheduler_jobs AS job ON job.job_id = asked.job_id
ORDER BY asked.n;
